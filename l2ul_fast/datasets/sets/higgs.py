"""HIGGS: Higgs bosons against background, from simulated collisions."""

from l2ul_fast.datasets.registry import CC_BY, UCI, DatasetInfo, RawFile, StandIn, register, words
from l2ul_fast.datasets.text.csv import Layout

COLUMNS = (
    *words("lepton_pT lepton_eta lepton_phi missing_energy_magnitude missing_energy_phi"),
    *(f"jet_{j}_{what}" for j in (1, 2, 3, 4) for what in ("pt", "eta", "phi", "b-tag")),
    *words("m_jj m_jjj m_lv m_jlv m_bb m_wbb m_wwbb"),
)
register(
    DatasetInfo(
        name="higgs",
        original_name="HIGGS",
        source_page="https://archive.ics.uci.edu/dataset/280/higgs",
        licence=CC_BY,
        citation="P. Baldi, P. Sadowski, D. Whiteson, Nature Communications 5, 4308, 2014, doi 10.24432/C5V312",
        files=(
            RawFile(UCI + "00280/HIGGS.csv.gz", "ea302c18164d4e3d916a1e2e83a9a8d07069fa6ebc7771e4c0540d54e593b698"),
        ),
        base_names=("higgs.csv", "higgs", "higgs.txt", "higgs.libsvm", "higgs.svm"),
        n=11_000_000,
        class_rule="1 = signal, 0 = background",
        columns=COLUMNS,
        npz="higgs_subset.npz",
        reader=Layout(28, {1: 1, 0: 0, -1: 0}, class_first=True, libsvm=True),
        stand_in=StandIn("higgs.npz", components=8, balance=0.52992),
        order=7,
    )
)
