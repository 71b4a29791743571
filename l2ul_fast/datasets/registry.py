"""The paper's seven datasets: where they come from, what they hold and how they become numbers and two classes."""

from dataclasses import dataclass

from l2ul_fast.errors import DataError

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_CC_BY = "CC BY 4.0"


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@dataclass(frozen=True)
class RawFile:
    """One file to download. sha256 is of the file as served (None: not known)."""

    name: str
    url: str
    sha256: str | None = None


@dataclass(frozen=True)
class DatasetInfo:
    """Everything known about a dataset before reading it. Classes are always 0 and 1."""

    name: str
    original_name: str
    source_page: str
    licence: str
    citation: str
    files: tuple[RawFile, ...]
    base_names: tuple[str, ...]  # names of the original file once unpacked, lower case
    content_sha256: str | None  # of the unpacked original file, line ends LF
    n: int
    d: int
    class_counts: tuple[int, int] | None  # rows of class 0 and 1 where known for certain
    class_rule: str
    categorical: str
    missing: str
    columns: tuple[str, ...]
    npz: str | None = None  # a NumPy archive with X and y that may stand in the raw folder instead
    npz_sha256: str | None = None  # given when that archive is the complete set; without it, it is a subset

    def __post_init__(self) -> None:
        assert len(self.columns) == self.d


def get_info(name: str) -> DatasetInfo:
    """The registry entry of a dataset; DataError for an unknown name."""
    if name not in REGISTRY:
        raise DataError(f"there is no dataset {name!r}: choose one of {', '.join(REGISTRY)}")
    return REGISTRY[name]


VITALS = ("HR", "O2Sat", "Temp", "SBP", "MAP", "DBP", "Resp", "EtCO2")
LABS = words(
    "BaseExcess HCO3 FiO2 pH PaCO2 SaO2 AST BUN Alkalinephos Calcium Chloride Creatinine Bilirubin_direct Glucose "
    "Lactate Magnesium Phosphate Potassium Bilirubin_total TroponinI Hct Hgb PTT WBC Fibrinogen Platelets"
)
SEPSIS_HOURLY = (*VITALS, *LABS, "Age", "Gender", "Unit1", "Unit2", "HospAdmTime", "ICULOS")
SEPSIS_COLUMNS = (
    *(f"{c}_mean" for c in VITALS + LABS),
    *(f"{c}_obsfrac" for c in VITALS + LABS),
    *(f"{c}_min" for c in VITALS),
    *(f"{c}_max" for c in VITALS),
    *("Age", "Gender", "Unit1", "HospAdmTime", "n_hours"),
)
_SUSY_COLUMNS = words(
    "lepton_1_pT lepton_1_eta lepton_1_phi lepton_2_pT lepton_2_eta lepton_2_phi missing_energy_magnitude "
    "missing_energy_phi MET_rel axial_MET M_R M_TR_2 R MT2 S_R M_Delta_R dPhi_r_b cos_theta_r1"
)
_HIGGS_COLUMNS = (
    *words("lepton_pT lepton_eta lepton_phi missing_energy_magnitude missing_energy_phi"),
    *(f"jet_{j}_{what}" for j in (1, 2, 3, 4) for what in ("pt", "eta", "phi", "b-tag")),
    *words("m_jj m_jjj m_lv m_jlv m_bb m_wbb m_wwbb"),
)
_COVTYPE_COLUMNS = (
    *words("Elevation Aspect Slope Horizontal_Distance_To_Hydrology Vertical_Distance_To_Hydrology"),
    *words("Horizontal_Distance_To_Roadways Hillshade_9am Hillshade_Noon Hillshade_3pm"),
    "Horizontal_Distance_To_Fire_Points",
    *(f"Wilderness_Area_{k}" for k in range(1, 5)),
    *(f"Soil_Type_{k}" for k in range(1, 41)),
)

_ALL = (
    DatasetInfo(
        name="magic",
        original_name="MAGIC Gamma Telescope",
        source_page="https://archive.ics.uci.edu/dataset/159/magic+gamma+telescope",
        licence=_CC_BY,
        citation="R. Bock, MAGIC Gamma Telescope, UCI Machine Learning Repository, 2007, doi 10.24432/C52C8B",
        files=(
            RawFile(
                "magic04.data",
                _UCI + "magic/magic04.data",
                "e9314b7ebd4b4b59a3b3d65f7316663963777b16a46786877651dbbaa640b36a",
            ),
        ),
        base_names=("magic04.data",),
        content_sha256="e9314b7ebd4b4b59a3b3d65f7316663963777b16a46786877651dbbaa640b36a",
        n=19020,
        d=10,
        class_counts=(6688, 12332),
        class_rule="1 = g (gamma), 0 = h (hadron)",
        categorical="none",
        missing="none",
        columns=words("fLength fWidth fSize fConc fConc1 fAsym fM3Long fM3Trans fAlpha fDist"),
    ),
    DatasetInfo(
        name="adult",
        original_name="Adult (Census Income)",
        source_page="https://archive.ics.uci.edu/dataset/2/adult",
        licence=_CC_BY,
        citation="B. Becker, R. Kohavi, Adult, UCI Machine Learning Repository, 1996, doi 10.24432/C5XW20",
        files=(
            RawFile(
                "adult.data",
                _UCI + "adult/adult.data",
                "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            ),
        ),
        base_names=("adult.data",),
        content_sha256="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        n=32561,
        d=14,
        class_counts=(24720, 7841),
        class_rule="1 = income >50K, 0 = <=50K; only adult.data is used, adult.test is not",
        categorical="the 8 categorical columns hold 0..k-1, the categories in alphabetical order (ADULT_CATEGORIES)",
        missing="'?' becomes the median code of the training rows (the lower of two middle values)",
        columns=(
            *words("age workclass fnlwgt education education-num marital-status occupation relationship race sex"),
            *words("capital-gain capital-loss hours-per-week native-country"),
        ),
    ),
    DatasetInfo(
        name="sepsis",
        original_name="Early Prediction of Sepsis from Clinical Data: the PhysioNet/CinC Challenge 2019",
        source_page="https://physionet.org/content/challenge-2019/1.0.0/",
        licence=_CC_BY,
        citation="M. Reyna et al., Early Prediction of Sepsis from Clinical Data, PhysioNet, doi 10.13026/v64v-d857",
        files=(
            RawFile("training_setA.zip", "https://archive.physionet.org/users/shared/challenge-2019/training_setA.zip"),
            RawFile("training_setB.zip", "https://archive.physionet.org/users/shared/challenge-2019/training_setB.zip"),
        ),
        base_names=(),  # one .psv per patient, found by folder
        content_sha256=None,
        n=40336,
        d=89,
        class_counts=(37404, 2932),
        class_rule="1 = the patient has SepsisLabel 1 in some hour, 0 = never",
        categorical="Gender and Unit1 are 0/1 in the original; one row per patient is our own aggregate of the hourly "
        "rows: mean and observed fraction of 34 vitals and labs, minimum and maximum of 8 vitals, Age, Gender, Unit1, "
        "HospAdmTime, number of hours",
        missing="a quantity never measured becomes the median of the training rows (the lower of two middle values)",
        columns=SEPSIS_COLUMNS,
        npz="sepsis_patient_agg89.npz",
        npz_sha256="e353fe1f09de6b9f1acd0364334b988541a9a9d391308c8a0d201f291ce2439e",
    ),
    DatasetInfo(
        name="skin",
        original_name="Skin Segmentation",
        source_page="https://archive.ics.uci.edu/dataset/229/skin+segmentation",
        licence=_CC_BY,
        citation="R. Bhatt, A. Dhall, Skin Segmentation, UCI Machine Learning Repository, 2012, doi 10.24432/C5T30C",
        files=(RawFile("Skin_NonSkin.txt", _UCI + "00229/Skin_NonSkin.txt"),),  # line ends as served are not known
        base_names=("skin_nonskin.txt",),
        content_sha256="008f1fb6a169498dec54fb5951be6478e5465942cc4f6df3b5dabbe484c9a98f",
        n=245057,
        d=3,
        class_counts=(194198, 50859),
        class_rule="1 = skin (class 1 of the file), 0 = not skin (class 2)",
        categorical="none",
        missing="none",
        columns=("B", "G", "R"),
    ),
    DatasetInfo(
        name="covtype",
        original_name="Covertype",
        source_page="https://archive.ics.uci.edu/dataset/31/covertype",
        licence=_CC_BY,
        citation="J. Blackard, Covertype, UCI Machine Learning Repository, 1998, doi 10.24432/C50K5N",
        files=(
            RawFile(
                "covtype.data.gz",
                _UCI + "covtype/covtype.data.gz",
                "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
            ),
        ),
        base_names=("covtype.data",),
        content_sha256="0a9371cef7c964b5475d6053cc3e0894a5aa6f65ad1ed3ecb01c45aa96217945",
        n=581012,
        d=54,
        class_counts=(297711, 283301),
        class_rule="1 = cover type 2 (lodgepole pine), 0 = the other six, as in libsvm's covtype.binary",
        categorical="wilderness area (4) and soil type (40) are 0/1 columns in the original",
        missing="none",
        columns=_COVTYPE_COLUMNS,
    ),
    DatasetInfo(
        name="susy",
        original_name="SUSY",
        source_page="https://archive.ics.uci.edu/dataset/279/susy",
        licence=_CC_BY,
        citation="P. Baldi, P. Sadowski, D. Whiteson, Nature Communications 5, 4308, 2014, doi 10.24432/C54606",
        files=(
            RawFile(
                "SUSY.csv.gz",
                _UCI + "00279/SUSY.csv.gz",
                "be56cb5598da8ece4b13912230ee713bab8b3431a7d118e0054ffdf3a2f25664",
            ),
        ),
        base_names=("susy.csv", "susy", "susy.txt", "susy.libsvm", "susy.svm"),
        content_sha256=None,
        n=5_000_000,
        d=18,
        class_counts=None,
        class_rule="1 = signal, 0 = background",
        categorical="none",
        missing="none",
        columns=_SUSY_COLUMNS,
        npz="susy_subset.npz",
    ),
    DatasetInfo(
        name="higgs",
        original_name="HIGGS",
        source_page="https://archive.ics.uci.edu/dataset/280/higgs",
        licence=_CC_BY,
        citation="P. Baldi, P. Sadowski, D. Whiteson, Nature Communications 5, 4308, 2014, doi 10.24432/C5V312",
        files=(
            RawFile(
                "HIGGS.csv.gz",
                _UCI + "00280/HIGGS.csv.gz",
                "ea302c18164d4e3d916a1e2e83a9a8d07069fa6ebc7771e4c0540d54e593b698",
            ),
        ),
        base_names=("higgs.csv", "higgs", "higgs.txt", "higgs.libsvm", "higgs.svm"),
        content_sha256=None,
        n=11_000_000,
        d=28,
        class_counts=None,
        class_rule="1 = signal, 0 = background",
        categorical="none",
        missing="none",
        columns=_HIGGS_COLUMNS,
        npz="higgs_subset.npz",
    ),
)
REGISTRY: dict[str, DatasetInfo] = {info.name: info for info in _ALL}
