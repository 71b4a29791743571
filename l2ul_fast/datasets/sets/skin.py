"""Skin segmentation: the colour of a pixel, skin or not; most rows occur many times."""

from l2ul_fast.datasets.registry import CC_BY, UCI, DatasetInfo, RawFile, StandIn, register
from l2ul_fast.datasets.text.csv import Layout

register(
    DatasetInfo(
        name="skin",
        original_name="Skin Segmentation",
        source_page="https://archive.ics.uci.edu/dataset/229/skin+segmentation",
        licence=CC_BY,
        citation="R. Bhatt, A. Dhall, Skin Segmentation, UCI Machine Learning Repository, 2012, doi 10.24432/C5T30C",
        files=(RawFile(UCI + "00229/Skin_NonSkin.txt"),),  # line ends as served are not known
        base_names=("skin_nonskin.txt",),
        content_sha256="008f1fb6a169498dec54fb5951be6478e5465942cc4f6df3b5dabbe484c9a98f",
        n=245057,
        class_counts=(194198, 50859),
        class_rule="1 = skin (class 1 of the file), 0 = not skin (class 2)",
        columns=("B", "G", "R"),
        reader=Layout(3, {1: 1, 2: 0}, delimiter="\t"),
        stand_in=StandIn("skin.npz", components=24),
        order=4,
    )
)
