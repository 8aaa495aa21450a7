"""The anchors of headings, as GitHub and the site make them."""

import re


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
