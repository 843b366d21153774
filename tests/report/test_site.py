"""The page: everything in one file, every text as it was written, every link with a target."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from scala_lab.report.build import write_report
from scala_lab.report.chapter import Manifest
from scala_lab.sweep.store import Records
from tests.report.made_up import made_up_run
from tests.report.own_studies import forgotten_imports, records_of, write_study

VOID = {"meta", "img", "input", "br"}


class Page(HTMLParser):
    """Ids, links, and the text of a page; refuses tags that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids, self.links, self.texts, self.open = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if "href" in values else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    with forgotten_imports():
        references = (
            write_study(folder, "first", title="Scores of <script>alert(1)</script> & co"),
            write_study(folder, "broken", claim="X3", before="raise ValueError('<b>no</b>')"),
        )
        records = records_of(*references)
        diverged = next(iter(records.runs))
        records.runs[diverged]["status"] = "diverged"
        write_report(folder / "out", Manifest("embedded", studies=references, command="scala-lab study x"), records)
    return folder / "out"


@pytest.fixture(scope="module")
def source(report):
    return (report / "index.html").read_text()


@pytest.fixture(scope="module")
def page(source):
    return Page(source)


def test_nothing_is_fetched(source):
    assert not re.search(r"https?://|//cdn|@import|url\(", source)
    assert "default-src 'none'" in source


def test_links_within_the_page_and_to_files_have_their_targets(page, report):
    assert len(page.ids) == len(set(page.ids))
    assert len(page.links) > 10
    for link in page.links:
        if link.startswith("#"):
            assert link[1:] in page.ids, link
        else:
            assert (report / link).is_file(), link


def test_texts_of_studies_are_shown_as_written(page, source):
    assert "Scores of <script>alert(1)</script> & co" in page.text
    assert "A <b>bold</b> & plain claim" in page.text
    assert "It <i>helps</i>." in page.text
    assert "ValueError: <b>no</b>" in page.text
    assert "<script>alert" not in source


def test_a_claim_is_shown_with_effect_interval_verdict_and_its_figure(page):
    assert "a over b is +0.5 points [+0.252, +0.748] (n=3 seeds): its 95% interval lies above 0" in page.text
    assert "✓ supported" in page.text
    assert "#figure-first" in page.links


def test_a_study_is_shown_with_source_question_findings_notes_and_command(page, report):
    for words in ("Table 9", "Does it help?", "It helps by 1 & more.", "Table 9. Scores", "Budget: 6 epochs."):
        assert words in page.text
    assert re.search(r"scala-lab study \S+first\.py --profile embedded", page.text)


def test_every_run_is_listed_with_its_command_and_how_it_ended(page, report):
    for run in Records.read(report).runs.values():
        assert run["name"] in page.text
    assert page.text.count("scala-lab train --task mini-sst2 --method") == 4
    assert "Its cells: 3 finished, 1 diverged." in page.text


def test_a_report_without_runs_or_claims_is_a_page_too(tmp_path):
    write_report(tmp_path / "out", Manifest("embedded"), Records())
    assert "What these runs show" in Page((tmp_path / "out" / "index.html").read_text()).text


def test_a_run_that_failed_before_it_started_is_listed(tmp_path):
    with forgotten_imports():
        reference = write_study(tmp_path, "first", before="return Findings()")
        records = records_of(reference)
        for key, run in records.runs.items():
            kept = {name: run[name] for name in ("id", "name", "spec", "metrics")}
            records.runs[key] = {**kept, "metrics": {}, "status": "failed", "error": "no such\n  model"}
        write_report(tmp_path / "out", Manifest("embedded", studies=(reference,)), records)
    text = Page((tmp_path / "out" / "index.html").read_text()).text
    assert text.count("no such model") == 4
    assert "Its cells: 4 failed." in text


def test_made_up_runs_have_only_what_real_records_have():
    """The page must not be made from fields that training does not write."""
    from scala_lab.config import RunSpec
    from scala_lab.sweep.store import RUN_FIELDS

    assert set(made_up_run(RunSpec())) - {"epochs"} <= set(RUN_FIELDS)
