//! What NVIDIA's compute-sanitizer finds in the kernels.

use serde::{Deserialize, Serialize};

/// The tools that are run. They find accesses out of bounds, and accesses to shared memory that no barrier separates.
pub const TOOLS: [&str; 2] = ["memcheck", "racecheck"];

/// The result of one tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sanitized {
    /// Name of the tool.
    pub tool: String,
    /// What it found.
    pub finding: Finding,
}

/// What a tool found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// Nothing.
    Clean,
    /// Errors, with the first lines of the report.
    Errors(String),
    /// It is not available on this machine, with the reason.
    Unavailable(String),
    /// The watched program failed or took too long, with its last line.
    Failed(String),
}

impl Finding {
    /// The finding, from what the tool printed and whether the watched program succeeded.
    #[must_use]
    pub fn of(output: &str, ended_well: bool) -> Self {
        let of_tool = |line: &&str| line.starts_with("=========");
        let find = |words: &str| output.lines().find(|line| line.contains(words)).map(str::to_owned);
        if let Some(refused) = find("Device not supported") {
            return Self::Unavailable(refused.trim_start_matches(['=', ' ']).to_owned());
        }
        // "ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
        let summary = output.lines().filter(of_tool).find_map(|line| line.split_once("SUMMARY: "));
        match summary {
            Some((_, says)) if says.starts_with("0 ") && ended_well => Self::Clean,
            Some((_, says)) if !says.starts_with("0 ") => {
                let first = output.lines().filter(of_tool).map(|line| line.trim_start_matches(['=', ' ']));
                let first =
                    first.filter(|line| !line.is_empty() && !line.starts_with("COMPUTE-SANITIZER")).take(3);
                Self::Errors(format!("{says}: {}", first.collect::<Vec<_>>().join("; ")))
            }
            _ => {
                let last = output.lines().rev().find(|line| !of_tool(line) && !line.trim().is_empty());
                Self::Failed(last.unwrap_or("it said nothing").to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_prints_is_understood() {
        let clean = "========= COMPUTE-SANITIZER\nok\n========= ERROR SUMMARY: 0 errors\n";
        assert_eq!(Finding::of(clean, true), Finding::Clean);
        let races = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n";
        assert_eq!(Finding::of(races, true), Finding::Clean);
        let wrong = "========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n\
                     =========     at softmax_f32+0x90\n========= ERROR SUMMARY: 2 errors\n";
        let said = "2 errors: Invalid __global__ write of size 4 bytes; at softmax_f32+0x90; ERROR SUMMARY: 2 errors";
        assert_eq!(Finding::of(wrong, true), Finding::Errors(said.into()));
        let refused = "========= COMPUTE-SANITIZER\n========= Error: Device not supported\n";
        assert_eq!(Finding::of(refused, false), Finding::Unavailable("Error: Device not supported".into()));
    }

    #[test]
    fn no_errors_of_what_did_not_run_say_nothing() {
        let crashed = "========= COMPUTE-SANITIZER\nerror: no GPU\n========= ERROR SUMMARY: 0 errors\n";
        assert_eq!(Finding::of(crashed, false), Finding::Failed("error: no GPU".into()));
        assert_eq!(Finding::of("", false), Finding::Failed("it said nothing".into()));
    }
}
