"""A report in one HTML file, which opens without a network: `lpkernels report RUN... --html`."""

from lpkernels.report.html.gathering import gather
from lpkernels.report.html.page import page, write_page

__all__ = ["gather", "page", "write_page"]
