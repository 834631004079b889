# SPDX-License-Identifier: Apache-2.0
"""The paper's evaluation, run again on the simulator and compared number by number.

`paper` holds the paper's numbers, `plan` says which simulations make up the evaluation, `runner`
does them, `result` turns them into the figures that are compared, `targets` judges those, and
`document` and `pages` write them down.
"""
