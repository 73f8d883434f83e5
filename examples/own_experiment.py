"""An experiment of your own, compared over methods and seeds, with a table at the end.

    python examples/own_experiment.py

The same in commands, which need no Python and continue where they were interrupted:

    clom run examples/own_experiment.yaml --method derpp --budget smoke --seed 0      (and so on)
    clom record runs/own_experiment-* --ledger ledger.jsonl
    clom table --ledger ledger.jsonl --experiment own_experiment --budget smoke
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from clom.experiments.config import resolve
from clom.experiments.ledger import Row
from clom.experiments.run import execute
from clom.reporting.paper.rendering import to_markdown
from clom.reporting.paper.tables import make_table

FILE = Path(__file__).with_suffix(".yaml")


def main(out: Path) -> None:
    rows = []
    for method in ("finetune", "derpp"):
        for seed in (0, 1):
            # Everything that decides the outcome: data, network, settings of the method. All of it is in config.yaml.
            config = resolve(str(FILE), method, budget="smoke", seed=seed)
            folder = out / config.run_name
            execute(config, config.data.stream(None, seed), folder)
            rows.append(Row.of_run(folder))  # what `clom record` writes into the ledger
    print(to_markdown(make_table("main", rows, "smoke", ["own_experiment"])))


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(temporary))
