//! `compile --emit-ir`: what each pass made of the program, as files.
//!
//! Numbers of files are those of the passes, so that one that changed nothing leaves a gap. Steps stand after their numbers at
//! that point: once they are in their final order, those that `ipuc inspect` and traces have. A `.diff` leaves the numbers out,
//! as one step that goes changes those of all behind it. The last two files have the program and its weights as they are in
//! the `.ipu` file.

use super::failure::Failure;
use super::inspect::{layout, program};
use super::output::{count, seconds};
use ipuc_formats::model::Manifest;
use ipuc_passes::ir::{Graph, text};
use ipuc_passes::pipeline::Report;
use similar::algorithms::{Capture, Compact, Replace, myers};
use similar::udiff::UnifiedHunkHeader;
use similar::{DiffOp, group_diff_ops};
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
        let numbered = text::print_numbered(graph);
        let printed = without_numbers(&numbered);
        let mut write = |extension: &str, text: String| {
            let path = stem.with_extension(extension);
            std::fs::write(&path, text)?;
            self.written.push(path);
            io::Result::Ok(())
        };
        write("ir", comment + &numbered)?;
        if !self.last.is_empty() {
            write("diff", differences(&self.last, &printed))?;
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

/// What differs between two texts, with a few lines around it. (One algorithm over lines: all that the package has for texts is
/// several hundred functions.)
fn differences(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let mut found = Compact::new(Replace::new(Capture::new()), &old, &new);
    let Ok(()) = myers::diff(&mut found, &old, 0..old.len(), &new, 0..new.len());
    let mut shown = Vec::new();
    for hunk in group_diff_ops(found.into_inner().into_inner().into_ops(), CONTEXT_LINES) {
        shown.push(UnifiedHunkHeader::new(&hunk).to_string());
        for change in hunk {
            let signed =
                |sign: char, lines: &[&str]| lines.iter().map(|line| format!("{sign}{line}")).collect::<Vec<_>>();
            let (before, after) = (&old[change.old_range()], &new[change.new_range()]);
            match change {
                DiffOp::Equal { .. } => shown.extend(signed(' ', before)),
                DiffOp::Delete { .. } | DiffOp::Insert { .. } | DiffOp::Replace { .. } => {
                    shown.extend(signed('-', before).into_iter().chain(signed('+', after)));
                }
            }
        }
    }
    shown.into_iter().map(|line| line + "\n").collect()
}

/// The text without the numbers of steps, which stand at the begin of lines: `  0:2 %y : f32[2] = ..`.
fn without_numbers(numbered: &str) -> String {
    let line = |line: &str| -> String {
        let step = line.strip_prefix("  ").and_then(|step| step.split_once(' '));
        match step {
            Some((number, step)) if number.bytes().all(|byte| byte.is_ascii_digit() || byte == b':') => {
                format!("  {step}\n")
            }
            Some(_) | None => format!("{line}\n"),
        }
    };
    numbered.lines().map(line).collect()
}
