//! The Hub's listing of a model: its commit and its files.

use serde::Deserialize;

use super::{ANSWER_WITHIN, HubError, HubSettings, fetch::api_of, repo};

/// The Hub's listing of a model at a revision.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    /// The commit.
    pub(super) sha: String,
    /// Its files.
    pub(super) siblings: Vec<Listed>,
}

/// A file on the Hub.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Listed {
    #[serde(rename = "rfilename")]
    pub(super) path: String,
    /// In bytes, if the Hub gives it.
    pub(super) size: Option<u64>,
}

/// Requests the listing.
pub(super) fn about(settings: &HubSettings, name: &str, revision: &str) -> Result<Answer, HubError> {
    let api = api_of(settings, name)?;
    let unreachable = |error: ureq::Error| HubError::Unreachable {
        model: name.to_owned(),
        endpoint: settings.shown_endpoint(),
        why: error.to_string(),
    };
    let request = api.repo(repo(name, revision)).info_request().query("blobs", "true");
    let request = request.config().http_status_as_error(false).timeout_global(Some(ANSWER_WITHIN)).build();
    let mut response = request.call().map_err(unreachable)?;
    let status = response.status().as_u16();
    let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok()).map(str::to_owned);
    if status != 200 {
        return Err(refused(settings, name, revision, status, code.as_deref()));
    }
    let broken = |why: String| HubError::Broken { model: name.to_owned(), why };
    let answer: Result<Answer, _> = response.body_mut().with_config().limit(64 << 20).read_json();
    let answer = answer.map_err(|error| match error {
        ureq::Error::Json(why) => {
            broken(format!("{} does not answer as the Hub does: {why}", settings.shown_endpoint()))
        }
        other => unreachable(other),
    })?;
    if !super::is_commit(&answer.sha) {
        let (endpoint, sha) = (settings.shown_endpoint(), &answer.sha);
        return Err(broken(format!("{endpoint} gives {sha:?} where a commit is expected")));
    }
    Ok(answer)
}

/// The error for a status; `code` is the Hub's error code.
pub(super) fn refused(
    settings: &HubSettings,
    name: &str,
    revision: &str,
    status: u16,
    code: Option<&str>,
) -> HubError {
    let (model, endpoint) = (name.to_owned(), settings.shown_endpoint());
    match (status, code) {
        (_, Some("GatedRepo")) | (403, _) => HubError::Gated { model, endpoint },
        (_, Some("RevisionNotFound")) => {
            HubError::Revision { model, revision: revision.to_owned(), endpoint }
        }
        (_, Some("RepoNotFound")) | (404, _) => HubError::Missing { model, endpoint },
        // Without a token the Hub answers 401 for every model that it does not show.
        (401, _) if settings.token.is_some() => HubError::Token { model, endpoint },
        (401, _) => HubError::Missing { model, endpoint },
        (429, _) => HubError::Busy { model, endpoint },
        _ => HubError::Unreachable { model, endpoint, why: format!("it answers with status {status}") },
    }
}
