//! Servers that end with this program even if it is killed, except for one that was started at that very moment.
//!
//! Linux kills a process when the thread that started it ends, if the process requests that; exec keeps the request. So
//! a server is started through this program, which makes the request and then becomes the server, under the same
//! process id. On other systems servers outlive a killed program.

#[cfg(target_os = "linux")]
use std::ffi::OsString;
use std::{ffi::OsStr, process::Command};

use super::own;

/// The subcommand of [`turn_into`].
const NAME: &str = "bound";

/// A command for `program`. It has to be started from a thread that lasts as long as the program is needed.
pub(crate) fn bound(program: impl AsRef<OsStr>) -> Command {
    match own() {
        Ok(mut own) if cfg!(target_os = "linux") => {
            own.arg(NAME).arg(program);
            own
        }
        _ => Command::new(program),
    }
}

/// Becomes the program that is the first of `words`, called with the others. Returns only if that fails, with the
/// reason.
#[cfg(target_os = "linux")]
pub(crate) fn turn_into(words: &[OsString]) -> anyhow::Error {
    use std::os::unix::process::CommandExt;

    use rustix::process::{Signal, set_parent_process_death_signal};

    let Some((program, arguments)) = words.split_first() else {
        return anyhow::anyhow!("expected a program");
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return anyhow::Error::new(error).context("cannot ask to end with whoever has started this");
    }
    let error = Command::new(program).args(arguments).exec();
    anyhow::Error::new(error).context(format!("cannot start {}", program.display()))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_started_by_way_of_this_program() {
        let mut server = bound("/bin/server");
        server.args(["--port", "0"]);
        assert_eq!(server.get_program(), std::env::current_exe().unwrap());
        assert_eq!(server.get_args().collect::<Vec<_>>(), ["bound", "/bin/server", "--port", "0"]);
    }
}
