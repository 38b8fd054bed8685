//! The catalogue's examples are found, and `docs/findings.md` is made from it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;

use chronovisor_diagnose::{Code, Finding, catalogue, diagnose, intake};

fn example(code: Code) -> Vec<Finding> {
    let evidence = intake::files(catalogue::entry(code).example).unwrap();
    assert_eq!(evidence.complaints, Vec::<String>::new(), "{code}");
    diagnose(&evidence).findings
}

#[test]
fn every_example_shows_its_code_with_every_figure_it_can() {
    for code in Code::ALL {
        let findings = example(*code);
        let Some(found) = findings.iter().find(|finding| finding.code == *code) else {
            panic!("{code} not found, but {findings:?}");
        };
        let known = catalogue::entry(*code).figures;
        for name in found.figures.keys() {
            assert!(
                known.iter().any(|(known, _)| known == name),
                "{code}: {name}"
            );
        }
        // An example may leave out a figure that needs more files, but not all of them.
        assert!(
            known.is_empty()
                || !found.figures.is_empty()
                || *code == Code::ClockUnsynchronised
                || *code == Code::TscMarkedUnstable,
            "{code}"
        );
        assert!(!found.evidence.is_empty() && !found.cause.is_empty() && !found.remedy.is_empty());
    }
}

fn page() -> String {
    let mut text = String::from(
        "# Findings\n\nEvery finding of `chronovisor check`: what it means, how it is told, what to do, and a worked example. The examples are\nrun by a test, and this page is written from the same entries as `check --explain` and `check --list-codes`\n(`CHRONOVISOR_WRITE=1 cargo test -p chronovisor-diagnose --test catalogue`).\n\nA finding is a *fault* (something to act on), an *observation* (alone it leaves the verdict inconclusive) or a *note* (it changes no\nverdict). Differences are later minus earlier and guest minus reference, with sign, unless a name says otherwise.\n\n",
    );
    for code in Code::ALL {
        text.push_str(&format!("- [`{code}`](#{code})\n"));
    }
    for code in Code::ALL {
        let entry = catalogue::entry(*code);
        text.push_str(&format!(
            "\n## {code}\n\n{} *({})*\n\n**How it is told.** {}\n\n**What to do.** {}\n\n",
            entry.meaning,
            catalogue::weight(code.severity()),
            entry.detection,
            entry.remedy
        ));
        if !entry.figures.is_empty() {
            text.push_str("| figure | meaning |\n|---|---|\n");
            for (name, meaning) in entry.figures {
                text.push_str(&format!("| `{name}` | {meaning} |\n"));
            }
            text.push('\n');
        }
        text.push_str("**Example.**");
        for (path, content) in entry.example {
            text.push_str(&format!("\n\n`{path}`\n\n```text\n{}```\n", content));
        }
        let findings = example(*code);
        let found = findings
            .iter()
            .find(|finding| finding.code == *code)
            .unwrap();
        text.push_str(&format!("\nFound: {}\n\n", found.summary));
        for observation in &found.evidence {
            text.push_str(&format!(
                "- {} ({})\n",
                observation.seen, observation.source
            ));
        }
        for (name, figure) in &found.figures {
            text.push_str(&format!("- `{name}` = {figure}\n"));
        }
        text.push_str(&format!("\n{}\n\n", found.cause));
        text.push_str(&format!("Sources: {}.\n", entry.sources.join("; ")));
    }
    text
}

#[test]
fn the_kept_page_is_the_catalogue_s() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/findings.md");
    let page = page();
    if std::env::var_os("CHRONOVISOR_WRITE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        kept, page,
        "run with CHRONOVISOR_WRITE=1 after a wanted change"
    );
}
