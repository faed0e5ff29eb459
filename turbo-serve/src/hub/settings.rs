//! The Hub's address, the token, and the cache: from flags, else variables, else defaults.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::HubError;

/// How a [`Hub`](super::Hub) is used.
#[derive(Clone)]
pub struct HubSettings {
    /// Where the Hub is, without a slash at the end.
    pub endpoint: String,
    /// The account's token.
    pub token: Option<String>,
    /// Where files are kept.
    pub cache: PathBuf,
    /// The variable that restricts turbo to the cache; `None` if the Hub is used.
    pub offline: Option<&'static str>,
    /// How long a transfer may stand still before it is cancelled.
    pub patience: Duration,
    /// Pause before a broken transfer is resumed; multiplied by the number of failures.
    pub pause: Duration,
}

/// The default Hub.
const ENDPOINT: &str = "https://huggingface.co";

impl HubSettings {
    /// Settings from this process's variables; `token` and `cache` take precedence if given.
    ///
    /// # Errors
    /// [`HubError::TokenForm`]; [`HubError::Io`] if no place for a cache is known.
    pub fn from_env(token: Option<String>, cache: Option<PathBuf>) -> Result<Self, HubError> {
        Self::new(token, cache, |name| std::env::var(name).ok(), std::env::home_dir())
    }

    fn new(
        token: Option<String>,
        cache: Option<PathBuf>,
        variable: impl Fn(&str) -> Option<String>,
        home: Option<PathBuf>,
    ) -> Result<Self, HubError> {
        // Compose files set variables to empty text.
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| variable(name).map(|path| expanded(Path::new(&path), home.as_deref()));
        let cache = cache.map(|cache| expanded(&cache, home.as_deref()));
        let usual = || path("XDG_CACHE_HOME").or_else(|| Some(home.as_ref()?.join(".cache")));
        let hf_home = path("HF_HOME").or_else(|| Some(usual()?.join("huggingface")));
        // The command line reads this variable as a default of its flag. A flag takes precedence over all variables,
        // but this variable yields to its successor: a flag of the same value cannot be told from it.
        let old = path("HUGGINGFACE_HUB_CACHE");
        let given = cache.filter(|cache| old.as_ref() != Some(cache));
        let cache = given.or_else(|| path("HF_HUB_CACHE")).or(old);
        let cache = cache.or_else(|| Some(hf_home.as_ref()?.join("hub"))).ok_or_else(no_home)?;
        let token_file = path("HF_TOKEN_PATH").or_else(|| Some(hf_home.as_ref()?.join("token")));
        // Scripts may pass the value of an empty variable.
        let token = token.filter(|token| !token.is_empty());
        let token = token.or_else(|| variable("HF_TOKEN")).or_else(|| variable("HUGGING_FACE_HUB_TOKEN"));
        let token = token.or_else(|| std::fs::read_to_string(token_file?).ok());
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(HubError::TokenForm);
        }
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let says_yes = |name: &&str| variable(name).is_some_and(|value| is_yes(&value));
        let offline = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].into_iter().find(says_yes);
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            cache: absolute(&cache),
            offline,
            patience: Duration::from_secs(60),
            pause: Duration::from_secs(1),
        })
    }

    /// The Hub's address for messages: without a user name and password before its host.
    pub(super) fn shown_endpoint(&self) -> String {
        let (scheme, rest) = self.endpoint.split_at(self.endpoint.find("://").map_or(0, |at| at + 3));
        let authority = &rest[..rest.find('/').unwrap_or(rest.len())];
        // Anything but a port is the beginning of a password with a slash in it.
        let is_port =
            |(_, port): (&str, &str)| port.bytes().all(|byte| byte.is_ascii_digit() || byte == b']');
        let is_whole = authority.contains('@') || authority.rsplit_once(':').is_none_or(is_port);
        let host = if is_whole { authority } else { rest }.rfind('@').map_or(0, |at| at + 1);
        format!("{scheme}{}", &rest[host..])
    }
}

/// Expands a leading `~`, as the Hub's other tools do: variables set by a systemd unit or a Compose file have seen no
/// shell.
fn expanded(path: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(below), Some(home)) => home.join(below),
        _ => path.to_owned(),
    }
}

/// Makes a path absolute: links in the cache are relative, and computed from absolute paths.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn no_home() -> HubError {
    let why = std::io::Error::other("there is no home folder: pass --huggingface-hub-cache or set HF_HOME");
    HubError::Io { path: "cache of the Hub".to_owned(), why }
}

/// Whether a variable is set to a value that the Hub's tools take for true.
fn is_yes(value: &str) -> bool {
    ["1", "on", "yes", "true"].iter().any(|yes| yes.eq_ignore_ascii_case(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> HubSettings {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        HubSettings::new(None, None, variable, Some("/home/me".into())).ok().unwrap()
    }

    #[test]
    fn a_password_of_the_endpoint_is_not_told() {
        for (endpoint, shown) in [
            ("https://mirror.org/hf", "https://mirror.org/hf"),
            ("https://me:se@cret@mirror.org:8080/a@b", "https://mirror.org:8080/a@b"),
            ("https://me:secret@mirror.org", "https://mirror.org"),
            ("https://me:se/cret@mirror.org", "https://mirror.org"),
            ("me:secret@mirror.org", "mirror.org"),
            ("mirror.org", "mirror.org"),
        ] {
            assert_eq!(settings(&[("HF_ENDPOINT", endpoint)]).shown_endpoint(), shown);
        }
    }

    #[test]
    fn the_cache_is_where_other_tools_have_it() {
        let cases: [(&[(&str, &str)], &str); 7] = [
            (&[], "/home/me/.cache/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HF_HOME", "/hf"), ("XDG_CACHE_HOME", "/x")], "/hf/hub"),
            (&[("HF_HOME", "~/hf")], "/home/me/hf/hub"),
            (&[("HF_HUB_CACHE", "~/models")], "/home/me/models"),
            (&[("HF_HOME", "/hf"), ("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
            (&[("HF_HUB_CACHE", "/new"), ("HUGGINGFACE_HUB_CACHE", "/old")], "/new"),
        ];
        for (variables, expected) in cases {
            assert_eq!(settings(variables).cache, Path::new(expected), "{variables:?}");
        }
        let given = HubSettings::new(None, Some("/given".into()), |_| Some("/other".into()), None);
        assert_eq!(given.ok().unwrap().cache, Path::new("/given"));
        for (new, expected) in [(Some("/new"), "/new"), (None, "/old")] {
            let variable = |name: &str| match name {
                "HF_HUB_CACHE" => new.map(str::to_owned),
                "HUGGINGFACE_HUB_CACHE" => Some("/old".to_owned()),
                _ => None,
            };
            let taken_for_the_flag = HubSettings::new(None, Some("/old".into()), variable, None);
            assert_eq!(taken_for_the_flag.ok().unwrap().cache, Path::new(expected));
        }
        let variable = |name: &str| (name == "HUGGINGFACE_HUB_CACHE").then(|| "~/old".to_owned());
        let taken_for_the_flag =
            HubSettings::new(None, Some("~/old".into()), variable, Some("/home/me".into()));
        assert_eq!(taken_for_the_flag.ok().unwrap().cache, Path::new("/home/me/old"));
        assert!(HubSettings::new(None, None, |_| None, None).is_err());
    }

    #[test]
    fn a_token_is_a_flag_a_variable_or_a_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let home = folder.path().to_str().unwrap();
        let token = |more: &[(&str, &str)]| settings(&[&[("HF_HOME", home)], more].concat()).token;
        assert_eq!(token(&[]).as_deref(), Some("hf_file"));
        assert_eq!(
            token(&[("HF_TOKEN", ""), ("HUGGING_FACE_HUB_TOKEN", "hf_old")]).as_deref(),
            Some("hf_old")
        );
        assert_eq!(
            token(&[("HF_TOKEN", "hf_new"), ("HUGGING_FACE_HUB_TOKEN", "hf_old")]).as_deref(),
            Some("hf_new")
        );
        assert_eq!(settings(&[("HF_HOME", "/nowhere")]).token, None);
        let old = |name: &str| (name == "HUGGING_FACE_HUB_TOKEN").then(|| "hf_old".to_owned());
        let nothing = HubSettings::new(Some(String::new()), None, old, Some("/".into()));
        assert_eq!(nothing.ok().unwrap().token.as_deref(), Some("hf_old"));
        let odd = HubSettings::new(Some("two words".into()), None, |_| None, Some("/".into()));
        assert!(matches!(odd, Err(HubError::TokenForm)));
    }

    #[test]
    fn offline_is_said_as_everywhere() {
        for name in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
            for (value, is_yes) in [("1", true), ("ON", true), ("true", true), ("0", false), ("", false)] {
                assert_eq!(settings(&[(name, value)]).offline, is_yes.then_some(name), "{name}: {value:?}");
            }
        }
        let other = settings(&[("HF_HUB_OFFLINE", "0"), ("TRANSFORMERS_OFFLINE", "1")]);
        assert_eq!(other.offline, Some("TRANSFORMERS_OFFLINE"));
        assert_eq!(settings(&[("HF_ENDPOINT", "http://h:1/")]).endpoint, "http://h:1");
    }
}
