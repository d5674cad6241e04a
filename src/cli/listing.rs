//! `compile --emit-ir`: what each pass made of the program, as files.
//!
//! Numbers of files are those of the passes, so that one that changed nothing leaves a gap. The last two files have the
//! program and its weights as they are in the `.ipu` file, with the numbers of steps and the names of values that
//! `ipuc inspect` and traces have.

use super::failure::Failure;
use super::inspect::{layout, program};
use super::output::{count, seconds};
use ipuc_formats::model::Manifest;
use ipuc_passes::ir::{Graph, text};
use ipuc_passes::pipeline::Report;
use similar::TextDiff;
use std::io;
use std::path::{Path, PathBuf};

/// Lines around a change that a `.diff` file shows.
const CONTEXT_LINES: usize = 2;

/// The files of a compilation.
pub(super) struct Listing<'a> {
    folder: Option<&'a Path>,
    /// Passes that have run.
    passes: usize,
    /// Files of passes.
    written: Vec<PathBuf>,
    /// The text that was written last.
    last: String,
    error: Option<io::Error>,
}

impl<'a> Listing<'a> {
    /// Files in this folder, which is made; none where it is `None`.
    pub(super) fn new(folder: Option<&'a Path>) -> anyhow::Result<Self> {
        if let Some(folder) = folder {
            std::fs::create_dir_all(folder)
                .map_err(|error| Failure::usage(format!("cannot create `{}`: {error}", folder.display())))?;
        }
        Ok(Listing { folder, passes: 0, written: Vec::new(), last: String::new(), error: None })
    }

    /// A pass has run; an error is told in the end.
    pub(super) fn write(&mut self, report: &Report, graph: &Graph) {
        let (Some(folder), None) = (self.folder, &self.error) else { return };
        if report.pass == "import"
            && let Err(error) = self.restart()
        {
            self.error = Some(error);
            return;
        }
        let number = self.passes;
        self.passes += 1;
        let changed = report.changes.steps > 0 || report.changes.annotations > 0;
        if !changed && number > 0 {
            return;
        }
        self.error = self.write_pass(&folder.join(format!("{number:03}-{}", report.pass)), report, graph).err();
    }

    /// The program is made again: files of what was made before are gone.
    fn restart(&mut self) -> io::Result<()> {
        (self.passes, self.last) = (0, String::new());
        self.written.drain(..).try_for_each(std::fs::remove_file)
    }

    fn write_pass(&mut self, stem: &Path, report: &Report, graph: &Graph) -> io::Result<()> {
        let comment = format!(
            "// after {}: {}, {} of {} changed, {}\n",
            report.pass,
            seconds(report.time),
            report.changes.steps,
            count(report.steps, "step"),
            count(report.changes.annotations, "annotation")
        );
        let printed = text::print(graph);
        let mut write = |extension: &str, text: String| {
            let path = stem.with_extension(extension);
            std::fs::write(&path, text)?;
            self.written.push(path);
            io::Result::Ok(())
        };
        write("ir", comment + &printed)?;
        if !self.last.is_empty() {
            let diff = TextDiff::from_lines(&self.last, &printed);
            let shown = diff.unified_diff().context_radius(CONTEXT_LINES).to_string();
            write("diff", shown)?;
        }
        self.last = printed;
        Ok(())
    }

    /// The program is written: what is in the file.
    pub(super) fn finish(mut self, manifest: &Manifest) -> anyhow::Result<()> {
        let Some(folder) = self.folder else { return Ok(()) };
        let write = |name: &str, lines: Vec<String>| std::fs::write(folder.join(name), lines.join("\n") + "\n");
        let error = self.error.take().or_else(|| {
            let written = write("program.txt", program::lines(manifest));
            written.and_then(|()| write("weights.txt", layout::lines(manifest))).err()
        });
        match error {
            None => Ok(()),
            Some(error) => {
                let folder = folder.display();
                Err(anyhow::Error::new(error).context(format!("cannot write the files of --emit-ir into `{folder}`")))
            }
        }
    }
}
