//! Where things are kept between runs: what `--cost-cache` and `--packed-cache` say, or where this system keeps caches.

use std::{env, ffi::OsString, path::PathBuf, str::FromStr};

use clap::Args;

/// What a flag for a cache was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CacheArgument {
    /// Made at every start.
    Off,
    /// Kept in this folder.
    In(PathBuf),
}

impl FromStr for CacheArgument {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            // It would be the working directory.
            "" => Err("expected a folder or `off`"),
            "off" => Ok(Self::Off),
            folder => Ok(Self::In(folder.into())),
        }
    }
}

/// Where packed weights are kept. Commands that run a model take it with `#[command(flatten)]`.
#[derive(Args, Clone)]
pub(super) struct PackedCacheArguments {
    /// Folder in which packed weights are kept, or `off`
    ///
    /// Packed weights have the order that this processor computes with. If they are kept, the next start need not pack
    /// them; the file is as large as the weights in their dtype. With `off`, every start packs them. By default,
    /// turbo/packed in the user's cache folder (XDG_CACHE_HOME; if that is not set, ~/.cache, on macOS
    /// ~/Library/Caches, on Windows LOCALAPPDATA).
    #[arg(long, env, value_name = "DIR|off", help_heading = "Machine")]
    packed_cache: Option<CacheArgument>,
}

impl PackedCacheArguments {
    /// The folder; `None` where weights are not kept.
    pub(super) fn folder(&self) -> Option<PathBuf> {
        folder(self.packed_cache.as_ref(), "turbo/packed")
    }
}

/// The folder for measured costs; `None` where they are not kept.
pub(super) fn costs(argument: Option<&CacheArgument>) -> Option<PathBuf> {
    folder(argument, "turbo/costs")
}

/// What `argument` says, by default the folder `usual` among the user's caches.
fn folder(argument: Option<&CacheArgument>, usual: &str) -> Option<PathBuf> {
    match argument {
        Some(CacheArgument::Off) => None,
        Some(CacheArgument::In(folder)) => Some(folder.clone()),
        None => Some(user_caches(|name| env::var_os(name))?.join(usual)),
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
        let folder_of = |text: &str| costs(Some(&text.parse().unwrap()));
        assert_eq!(folder_of("off"), None);
        assert_eq!(folder_of("./off"), Some("./off".into()));
        assert_eq!(folder_of("/a/b"), Some("/a/b".into()));
        assert_eq!("".parse::<CacheArgument>(), Err("expected a folder or `off`"));
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
