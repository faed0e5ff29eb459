//! Where `turbo serve` keeps measured costs between runs: what `--cost-cache` says, or where this system keeps caches.

use std::{convert::Infallible, env, ffi::OsString, path::PathBuf, str::FromStr};

/// What `--cost-cache` was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CostCacheArgument {
    /// Measured at every start.
    Off,
    /// Kept in this folder.
    In(PathBuf),
}

impl FromStr for CostCacheArgument {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "off" { Self::Off } else { Self::In(text.into()) })
    }
}

/// The folder; `None` where costs are not kept.
pub(super) fn folder(argument: Option<&CostCacheArgument>) -> Option<PathBuf> {
    match argument {
        Some(CostCacheArgument::Off) => None,
        Some(CostCacheArgument::In(folder)) => Some(folder.clone()),
        None => Some(user_caches(|name| env::var_os(name))?.join("turbo/costs")),
    }
}

/// The user's folder for caches: `XDG_CACHE_HOME`, or what is usual on this system; `None` without a home.
fn user_caches(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // A relative path is to be ignored, says the XDG specification; an empty one is as none.
    let folder = |name: &str| variable(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let usual = || {
        if cfg!(windows) {
            folder("LOCALAPPDATA")
        } else if cfg!(target_os = "macos") {
            Some(folder("HOME")?.join("Library/Caches"))
        } else {
            Some(folder("HOME")?.join(".cache"))
        }
    };
    folder("XDG_CACHE_HOME").or_else(usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_a_folder_or_off() {
        let folder_of = |text: &str| folder(Some(&text.parse().unwrap_or(CostCacheArgument::Off)));
        assert_eq!(folder_of("off"), None);
        assert_eq!(folder_of("./off"), Some("./off".into()));
        assert_eq!(folder_of("/a/b"), Some("/a/b".into()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn without_one_it_is_the_users_folder_for_caches() {
        let caches = |variables: &[(&str, &str)]| {
            user_caches(|name| variables.iter().find(|it| it.0 == name).map(|it| it.1.into()))
        };
        assert_eq!(caches(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")]), Some("/x".into()));
        assert_eq!(caches(&[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")]), Some("/h/.cache".into()));
        assert_eq!(caches(&[("XDG_CACHE_HOME", ""), ("HOME", "/h")]), Some("/h/.cache".into()));
        assert_eq!(caches(&[]), None);
    }
}
