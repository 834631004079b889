# SPDX-License-Identifier: Apache-2.0
"""Reports: text tables, plots and one self-contained HTML page.

Nothing here measures or simulates. The functions take the results that `deepum.backends.sim`
gives (as a `Study`) or a trace, and turn them into something to read.
"""
