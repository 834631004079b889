# SPDX-License-Identifier: Apache-2.0
"""Why a target is missed, in words: shown beside it for as long as it is.

Keys are those of `deepum.reproduce.targets`: ``speedup``, ``points``, ``faults``, and so on. What
is said here can be seen in the tables of the same document.
"""

REMARKS: dict[str, str] = {
    "lms": (
        "It is the ResNets. At batch 1280 ResNet-152 must move 195 GB each way in a step (least "
        "traffic, below), which takes 18 s each way at 11 GB/s. Of IBM's two designs the earlier "
        "one copies out while the GPU stands still, and the later one copies in before the kernel "
        "that needs it: each leaves one direction exposed, so neither can end a step sooner than "
        "18 s after the computation. The paper's LMS does so after 7 s (39.3 s for an ideal of "
        "32.6 s), so it is not one of the published patches, or its ResNets move far less. On "
        "the other rows ours is within a third of the paper's seconds. The later patches come "
        "nearer in the mean by being too fast on BERT Base and DLRM and too slow on the ResNets."
    ),
    "lms-oom": (
        "Fragmentation alone does not explain the paper's column: its LMS-mod, which gives cached "
        "memory back, still fails on 7 of the 12 rows, two of them BERT Base, which exceeds the "
        "card by a gigabyte or two, while any tensor can be swapped out between two kernels. "
        "Nothing in IBM's patches pins so much. Of the failures that LMS-mod cures we have two "
        "of five, after 6 and 10 steps; our ResNet segments are a few gigabytes each and are "
        "reused whole, so nothing falls to pieces there."
    ),
    "faults": (
        "What is left has two causes. DLRM looks rows up at random, and with memory full a block "
        "may be gone when its turn comes: the oracle, which knows every kernel, has as many faults "
        "there. And rows of two ways lose blocks where a kernel touches thousands: with eight "
        "ways (past the paper) the ResNets have next to none. Both are below 2 % of naive UM's."
    ),
    "depth-best": (
        "As in the paper, DLRM gets slower at large N and BERT Large keeps gaining (table of rows "
        "in the section on the prefetch distance). On the other models the paper's mean falls "
        "beyond 32 and ours goes on rising by a few percent: a deeper chain costs nothing here, "
        "since what waits to be moved is bounded in blocks whatever N is, blocks that are expected "
        "soon are protected, and looking up takes no simulated time. The paper's text gives no "
        "reason for the fall, so none was put into the model."
    ),
    "depth-gain": (
        "With N = 8 the chain already keeps the bus busy most of the time, since one move takes "
        "longer than most kernels; the paper's prefetching thread may have needed more distance."
    ),
    "geometry-spread": (
        "All of it comes from the ResNets (table of rows in that section). Their kernels touch up "
        "to thousands of blocks, and 128 rows of two ways hold 256, so the rest faults in every "
        "step. Without the ResNets the spread is a few percent, as in the paper. How the paper's "
        "small tables lose no more there its text does not say."
    ),
    "past-gain": (
        "There is no more to gain under this model: with all options `chained` is as fast as the "
        "oracle on every row, to 1 %, and the oracle is that little faster than plain `chained`. "
        "On BERT Base 29 and DLRM the plain policy is at, or within a few percent of, the time of "
        "the computation alone; where most is moved (GPT-2 XL, the ResNets) the bus is busy "
        "almost all the time already."
    ),
    "past-bound": (
        "The bound adds up each direction over a whole step as if both were busy throughout, but "
        "the forward pass hardly has anything to bring in and the backward pass hardly anything "
        "to take out. GPT-2 XL at batch 3 brings 55 GB in and takes 55 GB out in a step: 5.2 s and "
        "5.0 s on the bus, one after the other 10.2 s of the 11.4 s that the best run takes. A "
        "linear program over the step (bench/schedule_bound.py; table in docs/simulator.md) shows "
        "that no schedule of moves takes less than 10.1 s. By that measure 11 of the 12 rows are "
        "within 1.15 times of what is possible, nine within 1.09, and GPT-2 L 3 is at 1.27."
    ),
    "past-slower": (
        "A tenth of a percent on the named rows is within what the random look-ups of DLRM make of "
        "it; the oracle is no faster there than plain `chained`."
    ),
}
