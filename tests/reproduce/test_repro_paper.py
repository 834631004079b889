# SPDX-License-Identifier: Apache-2.0
"""The paper's numbers agree with each other, which shows that they were copied right."""

import pytest

from deepum.reproduce import paper, plan
from deepum.reproduce.statistics import gmean, line, ratio, spearman
from deepum.trace import Trace


def over_um(name):
    return gmean(ratio(row.um_s, getattr(row, name)) for row in paper.ROWS)


def test_printed_means_follow_from_the_rows():
    assert over_um("chained_s") == pytest.approx(paper.GMEAN["chained"], rel=0.001)
    assert over_um("lms_s") == pytest.approx(paper.GMEAN["lms"], rel=0.002)
    assert over_um("lms_mod_s") == pytest.approx(paper.GMEAN["lms_mod"], rel=0.002)
    ideal = gmean(row.ideal_speedup for row in paper.ROWS)
    assert ideal == pytest.approx(paper.GMEAN["ideal"], rel=0.001)
    energy = gmean(row.energy for row in paper.ROWS)
    assert energy == pytest.approx(paper.ENERGY["chained"], rel=0.002)


def test_counts():
    assert len(paper.ROWS) == 23
    assert len(paper.GEOMETRY) == 13
    assert sum(row.lms_s is None for row in paper.ROWS) == 12
    assert max(paper.GEOMETRY, key=paper.GEOMETRY.get) == paper.GEOMETRY_USED
    shares = [row.faults_chained / row.faults_um for row in paper.ROWS]
    assert min(shares) < 0.0001
    assert max(shares) == pytest.approx(0.018, rel=0.01)


def test_every_point_has_a_shipped_trace():
    shipped = Trace.shipped()
    points = (*plan.POINTS_32GB, *plan.POINTS_16GB)
    assert len(points) == 35
    assert {point.trace for point in points} == set(shipped)


def test_full_plan():
    full = plan.full()
    jobs = full.jobs
    assert len(jobs) == len(set(jobs))
    assert [p.name for p in full.points[12:14]] == ["DLRM 96K", "DLRM 128K"]
    base = plan.POINTS_32GB[0]
    # The paper's own depth and geometry are the run that there is anyway.
    assert plan.depth_job(base, 32) == plan.geometry_job(base, (2, 4, 2048)) == base.job("chained")
    # Two batches of each of seven models.
    assert len(full.swept) == 14
    sweeps = 14 * (6 + 12)
    columns = 23 * len(plan.runs_of(base)) + 12 * len(plan.runs_of(full.points[-1]))
    trials = 23 * (1 + len(plan.PAST_PAPER_TRIALS))
    assert columns + sweeps < len(jobs) <= columns + trials + sweeps + 23
    order = [job.trace for job in jobs]
    assert order == sorted(order, key=order.index), "jobs of one trace are not together"


def test_quick_plan_has_every_model_once():
    quick = plan.quick()
    assert len(quick.points) == 11
    assert len(quick.jobs) < 200


def test_statistics():
    assert gmean([2, None, 8]) == pytest.approx(4)
    assert gmean([]) is None
    assert ratio(1, 0) is None
    assert ratio(None, 1) is None
    assert spearman([(1, 10), (2, 20), (3, 30)]) == pytest.approx(1)
    assert spearman([(1, 3), (2, 2), (3, 1)]) == pytest.approx(-1)
    # Ties share a rank: the value is Pearson's of (1.5, 1.5, 3) and (1, 2, 3).
    assert spearman([(5, 1), (5, 2), (9, 3)]) == pytest.approx(0.8660254)
    assert spearman([(1, 1)]) is None
    assert spearman([(1, 1), (1, 2)]) is None
    assert line([(1, 3), (2, 5), (3, 7)]) == pytest.approx((1, 2))
    assert line([(1, 3), (1, 4)]) is None
