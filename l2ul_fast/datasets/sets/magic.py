"""MAGIC gamma telescope: 10 numbers of a shower of light, gamma or hadron."""

from l2ul_fast.datasets.registry import CC_BY, UCI, DatasetInfo, RawFile, StandIn, register, words
from l2ul_fast.datasets.text.csv import Layout

register(
    DatasetInfo(
        name="magic",
        original_name="MAGIC Gamma Telescope",
        source_page="https://archive.ics.uci.edu/dataset/159/magic+gamma+telescope",
        licence=CC_BY,
        citation="R. Bock, MAGIC Gamma Telescope, UCI Machine Learning Repository, 2007, doi 10.24432/C52C8B",
        files=(
            RawFile(UCI + "magic/magic04.data", "e9314b7ebd4b4b59a3b3d65f7316663963777b16a46786877651dbbaa640b36a"),
        ),
        base_names=("magic04.data",),
        content_sha256="e9314b7ebd4b4b59a3b3d65f7316663963777b16a46786877651dbbaa640b36a",
        n=19020,
        class_counts=(6688, 12332),
        class_rule="1 = g (gamma), 0 = h (hadron)",
        columns=words("fLength fWidth fSize fConc fConc1 fAsym fM3Long fM3Trans fAlpha fDist"),
        reader=Layout(10, {"g": 1, "h": 0}),
        stand_in=StandIn("magic.npz", components=8),
        order=1,
    )
)
