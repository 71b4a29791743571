"""Forest cover type: lodgepole pine or one of six others."""

from l2ul_fast.datasets.registry import CC_BY, UCI, DatasetInfo, RawFile, StandIn, register, words
from l2ul_fast.datasets.text.csv import Layout

COLUMNS = (
    *words("Elevation Aspect Slope Horizontal_Distance_To_Hydrology Vertical_Distance_To_Hydrology"),
    *words("Horizontal_Distance_To_Roadways Hillshade_9am Hillshade_Noon Hillshade_3pm"),
    "Horizontal_Distance_To_Fire_Points",
    *(f"Wilderness_Area_{k}" for k in range(1, 5)),
    *(f"Soil_Type_{k}" for k in range(1, 41)),
)
register(
    DatasetInfo(
        name="covtype",
        original_name="Covertype",
        source_page="https://archive.ics.uci.edu/dataset/31/covertype",
        licence=CC_BY,
        citation="J. Blackard, Covertype, UCI Machine Learning Repository, 1998, doi 10.24432/C50K5N",
        files=(
            RawFile(
                UCI + "covtype/covtype.data.gz", "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771"
            ),
        ),
        base_names=("covtype.data",),
        content_sha256="0a9371cef7c964b5475d6053cc3e0894a5aa6f65ad1ed3ecb01c45aa96217945",
        n=581012,
        class_counts=(297711, 283301),
        class_rule="1 = cover type 2 (lodgepole pine), 0 = the other six, as in libsvm's covtype.binary",
        categorical="wilderness area (4) and soil type (40) are 0/1 columns in the original",
        columns=COLUMNS,
        reader=Layout(54, {k: int(k == 2) for k in range(1, 8)}),
        stand_in=StandIn("covtype.npz", components=32, one_hot=((10, 14), (14, 54))),
        order=5,
    )
)
