//! SVG elements as text.

use std::fmt::Write;

/// The handful of elements that are needed, with every text escaped.
pub(super) struct Canvas(String);

impl Canvas {
    const STYLE: &str = "text{font-family:Helvetica,Arial,sans-serif;font-size:12px;fill:#222}\
        .title{font-size:15px;font-weight:bold}.chunk{font-weight:bold}.tick{font-size:11px;fill:#555}\
        .name,.axis{font-size:11px}.end{text-anchor:end}.middle{text-anchor:middle}\
        .panel{stroke:#888}.tensor{stroke:#333;stroke-width:.7}.grid{stroke:#d6d6d2}.mark{stroke:#888}";

    pub(super) fn new(width: f64, height: f64) -> Self {
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\">\n<style>{}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
            Self::STYLE
        ))
    }

    pub(super) fn rect(&mut self, [x, y, width, height]: [f64; 4], class: &str, fill: &str, tooltip: &str) {
        let tooltip =
            if tooltip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tooltip)) };
        self.push(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{fill}\">{tooltip}</rect>\n"
        ));
    }

    pub(super) fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, class: &str) {
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n"
        ));
    }

    pub(super) fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape(text);
        self.push(format_args!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>\n"));
    }

    /// Reads from below to above.
    pub(super) fn upward_text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape(text);
        self.push(format_args!(
            "<text class=\"{class}\" transform=\"translate({x:.1} {y:.1}) rotate(-90)\">{text}</text>\n"
        ));
    }

    fn push(&mut self, element: std::fmt::Arguments) {
        self.0.write_fmt(element).expect("a String takes every text");
    }

    pub(super) fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
