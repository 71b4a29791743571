"""SUSY: supersymmetric particles against background, from simulated collisions."""

from l2ul_fast.datasets.registry import CC_BY, UCI, DatasetInfo, RawFile, StandIn, register, words
from l2ul_fast.datasets.text.csv import Layout

register(
    DatasetInfo(
        name="susy",
        original_name="SUSY",
        source_page="https://archive.ics.uci.edu/dataset/279/susy",
        licence=CC_BY,
        citation="P. Baldi, P. Sadowski, D. Whiteson, Nature Communications 5, 4308, 2014, doi 10.24432/C54606",
        files=(RawFile(UCI + "00279/SUSY.csv.gz", "be56cb5598da8ece4b13912230ee713bab8b3431a7d118e0054ffdf3a2f25664"),),
        base_names=("susy.csv", "susy", "susy.txt", "susy.libsvm", "susy.svm"),
        n=5_000_000,
        class_rule="1 = signal, 0 = background",
        columns=words(
            "lepton_1_pT lepton_1_eta lepton_1_phi lepton_2_pT lepton_2_eta lepton_2_phi missing_energy_magnitude "
            "missing_energy_phi MET_rel axial_MET M_R M_TR_2 R MT2 S_R M_Delta_R dPhi_r_b cos_theta_r1"
        ),
        npz="susy_subset.npz",
        reader=Layout(18, {1: 1, 0: 0, -1: 0}, class_first=True, libsvm=True),
        stand_in=StandIn("susy.npz", components=6, balance=0.457565),
        order=6,
    )
)
