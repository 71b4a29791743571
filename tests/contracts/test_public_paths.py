"""Names that keep their import path: what the README, the docs, the case table and older commits import.

asv and perf-check run today's case table on older commits and an older one on today's code, so everything that
`l2ul_fast.cases` and `benchmarks` import is a promise too. A name may move if a real module of two lines stays there.
"""

import subprocess
import sys
from importlib import import_module

import pytest

#: Module -> names that must be importable from it; "" imports the module alone.
PUBLIC = {
    "l2ul_kernels": """
        Partitions assign_cells cell_counts counts_from_cells pack_cells unpack_cells packed_width bits_per_cell one_hot
        sample_row_ids threads available_cores warmup count_rows count_sets
        logistic_fit_pairs logistic_sums logistic_gradient logistic_loss logistic_hvp
        softmax_fit_pairs softmax_sums softmax_gradient softmax_loss softmax_hvp
        mlp_sums mlp_gradient mlp_logits mlp_size mlp_fit_pairs mlp_hessian mlp_hvp mlp_anchored_pairs mlp_train
        DirectForward""",
    "l2ul_kernels.threads": "threads thread_limit available_cores report parallel_entry",
    "l2ul_kernels.reference": """
        assign_cells cell_counts class_counts one_hot pack_cells unpack_cells bits_per_cell squared_distances""",
    "l2ul_fast": "L2UL IsolationKernel KernelMeanEmbedding __version__ distributed metrics",
    "l2ul_fast.datasets": """
        CODECS REGISTRY DatasetFile DatasetInfo DatasetWriter convert dataset_path default_data_dir default_raw_dir
        fetch find_raw get_info open_dataset train_mask verify""",
    "l2ul_fast.datasets.stream": "Shards sample_partitions stream_counts",
    "l2ul_fast.datasets.cellstore": "CellStore stream_cells",
    "l2ul_fast.datasets.standin": "make generate",
    "l2ul_fast.datasets.registry": "get_info",
    "l2ul_fast.datasets.hdf5": "open_dataset",
    "l2ul_fast.datasets.layout": "dataset_path default_data_dir",
    "l2ul_fast.tables": "ArrayTable FileTable in_memory",
    "l2ul_fast.errors": "UserError DataError",
    "l2ul_fast.models": "LogisticModel MLPModel",
    "l2ul_fast.baselines": "METHODS",
    "l2ul_fast.unlearner": "L2UL Unlearned",
    "l2ul_fast.unlearner.l2ul": "L2UL",
    "l2ul_fast.unlearner.artifact": """
        save_artifact load_artifact locked read_header read_ledger check_artifact""",
    "l2ul_fast.timing": "interleave once",
    "l2ul_fast.cases": "CASES DATASETS PROFILES Case Profile Skip Work current quality ratios",
    "l2ul_fast.cases.case": "Case Skip Work budget",
    "l2ul_fast.cases.data": "SEED facts many_rows real_file rows source",
    "l2ul_fast.cases.profiles": "DATASETS PROFILES Profile WIDE all_threads current model_threads",
    "l2ul_fast.cases.quality": "METHODS rho accuracy_gap",
    "l2ul_fast.cases.ratios": "METHODS PEERS KERNELS",
    "l2ul_fast.cases.table": "BASELINES CASES MODELS R Requests T fitted forget_rows model_rows prepared",
    "l2ul_fast.cases.worker": "",
    "l2ul_fast.cli": "main",
    "l2ul_fast.perfcheck": "main",
    "l2ul_fast.resnet.salun": "SalUn",
    "l2ul_fast.resnet.rum": "Rum",
    "l2ul_fast.resnet.advimp": "AdvImp",
    "l2ul_fast.distributed": "connect make_pairs map_jobs sample_partitions stream_counts",
}
#: What the case table and benchmarks/ import besides: a new home needs a module left behind for older commits.
OF_THE_CASES = {
    "l2ul_fast.environment": "git_sha",
    "l2ul_fast.experiments.kernels": "measure_cell",
    "l2ul_fast.experiments.peers": "PEERS",
    "l2ul_fast.experiments.stream": "memory_growth",
    "l2ul_fast.experiments.unlearn_quality": "answer newton",
}
#: Documented, and nobody's promise: they stay for one release and may then be taken off this list.
ALIASES = {
    "l2ul_kernels.reference_logistic": "",
    "l2ul_kernels.reference_mlp": "",
    "l2ul_kernels.reference_forward": "",
    "l2ul_kernels.reference_request": "",
    "l2ul_fast.datasets.standin_fit": "",
    "l2ul_fast.compare": "",
    "l2ul_fast.results": "Run read_records write_atomic",
}


@pytest.mark.parametrize("module", [*PUBLIC, *OF_THE_CASES, *ALIASES])
def test_names_keep_their_path(module):
    import_module(module)
    for name in (PUBLIC | OF_THE_CASES | ALIASES)[module].split():
        exec(f"from {module} import {name}")  # as a reader writes it: a name, or a module below


def test_the_command_line_runs_as_a_module(tmp_path):
    for module in ("l2ul_fast.cli", "l2ul_fast.perfcheck"):
        done = subprocess.run(
            [sys.executable, "-m", module, "--help"], capture_output=True, text=True, cwd=tmp_path, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert "usage" in done.stdout.lower()
