"""`scala-lab architectures`: a table of what equals the stock model, and why the others are refused."""

from __future__ import annotations

from scala_lab.cli import main


def test_the_command_prints_the_table_and_the_sentence(tmp_path, capfd):
    assert main(["architectures", "bert", "ibert", "--markdown", str(tmp_path / "table.md")]) == 0
    table = (tmp_path / "table.md").read_text()
    assert "2 architectures, 1 equal to stock" in table
    assert "| bert | equal to stock (" in table
    assert "| ibert | refused: it does not run as transformers runs it: unpadded, its word embeddings are not" in table
    assert main(["architectures", "brt"]) == 2
    assert "no classifier of type 'brt'" in capfd.readouterr().err
