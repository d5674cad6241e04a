//! Files that run while they arrive.

use super::models::{bits, chain, chain_bits, chain_inputs, session};
use std::path::Path;

/// The bytes of a compiled file, and of what it gives when it is all there.
fn compiled(folder: &Path) -> (Vec<u8>, Vec<u8>) {
    let path = chain(folder, 8);
    let expected = chain_bits(&path);
    (std::fs::read(&path).unwrap(), expected)
}

#[test]
fn a_file_runs_while_it_arrives_through_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, expected) = compiled(folder.path());
    let run = |bytes: &[u8], memory_bytes| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for block in bytes.chunks(50_000) {
                    // Who reads may have seen enough.
                    if std::io::Write::write_all(&mut writer, block).is_err() {
                        break;
                    }
                }
            });
            let options = ipuc::OpenOptions { memory_bytes, ..ipuc::OpenOptions::default() };
            let mut session = session(&ipuc::open_pipe(reader, options).map_err(|error| error.to_string())?, 2);
            let mut run = || session.run(None, chain_inputs()).map_err(|error| error.to_string());
            run()?;
            Ok::<_, String>(bits(&run()?))
        })
    };
    assert!(run(&bytes, None).unwrap() == expected);
    assert!(run(&bytes, Some(bytes.len() as u64 / 2)).unwrap() == expected, "a second pass reads what is kept");
    let error = run(&bytes[..bytes.len() - 300_000], None).unwrap_err();
    assert!(error.contains("the pipe ends before the file does"), "{error}");
    let error = run(&bytes[..1000], None).unwrap_err();
    assert!(error.contains("the pipe ends before the file does"), "{error}");
    let mut damaged = bytes.clone();
    damaged[bytes.len() - 5000] ^= 1;
    assert!(run(&damaged, None).unwrap_err().contains("checksum"));
}

#[test]
fn a_file_runs_while_it_grows() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, expected) = compiled(folder.path());
    let growing = folder.path().join("growing.ipu");
    let mut file = std::fs::File::create(&growing).unwrap();
    let options =
        ipuc::OpenOptions { follow: Some(std::time::Duration::from_secs(60)), ..ipuc::OpenOptions::default() };
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let mut session = session(&ipuc::open_with(&growing, options.clone()).unwrap(), 1);
            bits(&session.run(None, chain_inputs()).unwrap())
        });
        for block in bytes.chunks(bytes.len() / 5) {
            std::io::Write::write_all(&mut file, block).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert!(run.join().unwrap() == expected);
    });
    std::fs::write(&growing, &bytes[..bytes.len() / 2]).unwrap();
    let options = ipuc::OpenOptions { follow: Some(std::time::Duration::from_millis(100)), ..options };
    let mut session = session(&ipuc::open_with(&growing, options).unwrap(), 1);
    let error = session.run(None, chain_inputs()).unwrap_err().to_string();
    assert!(error.contains("has not grown"), "{error}");
}
