//! The `ipuc` command.

fn main() -> std::process::ExitCode {
    ipuc::cli::main()
}
