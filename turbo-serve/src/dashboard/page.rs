//! The page, and its content security policy.

use std::sync::LazyLock;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};

/// The whole page.
pub const PAGE: &str = include_str!("page.html");

/// Value of `Content-Security-Policy`: allows the page's own style and script, by their digests, and its own server.
pub static POLICY: LazyLock<String> = LazyLock::new(|| {
    let digest = |tag| STANDARD.encode(Sha256::digest(inside(PAGE, tag)));
    let (style, script) = (digest("style"), digest("script"));
    format!(
        "default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )
});

/// The content of the only element with this tag.
fn inside<'a>(page: &'a str, tag: &str) -> &'a str {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let between = page.split_once(&open).and_then(|(_, rest)| rest.split_once(&close));
    between.map_or("", |(inside, _)| inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_style_and_one_script_and_nothing_from_elsewhere() {
        for tag in ["style", "script"] {
            assert_eq!(PAGE.matches(&format!("<{tag}")).count(), 1, "{tag}");
            assert!(inside(PAGE, tag).len() > 1000, "{tag}");
        }
        // a style attribute would need a policy of its own
        for elsewhere in [" style=", " onclick=", " src=", "@import", "url(", "//cdn"] {
            assert!(!PAGE.contains(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn what_is_inside_is_without_its_tags() {
        assert_eq!(inside("<p><b>x</b><i>y</i></p>", "b"), "x");
        assert_eq!(inside("<p>", "b"), "");
    }
}
