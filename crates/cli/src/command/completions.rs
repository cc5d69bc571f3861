//! `stdchk completions`: what a shell needs to complete command lines, made from the same table as the help.

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use crate::arguments::Line;
use crate::exit::Outcome;
use crate::output;

/// What `completions` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Commands, flags and local files are completed, names in the pool are not. A new shell knows them.

Example:
  stdchk completions bash > ~/.local/share/bash-completion/completions/stdchk
  stdchk completions fish > ~/.config/fish/completions/stdchk.fish
  stdchk completions zsh > ~/.zfunc/_stdchk     # with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc")]
pub struct Arguments {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Outcome {
    let mut script = Vec::new();
    generate(arguments.shell, &mut Line::command(), "stdchk", &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end())
}
