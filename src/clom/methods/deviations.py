"""How our systems differ from their publications, in sentences that are printed beside the results.

Tested by tests/methods/test_registry.py.
"""

from __future__ import annotations

COMMON = (
    "At budget cpu every system has a smaller network, fewer training images and fewer epochs than published; where "
    "nothing else is stated, it then trains with Adam and a cosine schedule instead of the published optimiser.",
    "The CLOM paper's memory (200 exemplars for ten classes, 2,000 for more) replaces each publication's own, counted"
    " in bytes.",
    "The last epoch counts. Where an official code selects epochs, candidates or learning rates by test accuracy, "
    "validation images decide here.",
)
"""What holds for every system."""

_CALIBRATION = (
    "The calibration of outputs (Eq. 9) is minimised exactly; the paper's 160 SGD steps only at budget paper.",
)
_STATISTICS = (
    "After each task its normalisation statistics are recomputed with the final mask, from up to 1,024 training "
    "images; in the official code they are running averages."
)
_MASKS = (
    "Outside training, gates are exactly 0 or 1 (published: the sigmoid of a large s), so that nothing is forgotten "
    "at all.",
    "The applied update is masked instead of the gradient, which changes nothing for plain SGD.",
    "The gradient of a saturated gate does not vanish; in the official code it does, by the rounding of float32.",
    _STATISTICS,
    "At budget cpu on CIFAR-10, five of six gates are open at first instead of half, which narrow networks need.",
)
_CONTRASTIVE = (
    "At budgets other than paper, Adam replaces LARS, and the linear head of Eq. 4 is solved by L-BFGS with an L2 "
    "term instead of trained by SGD.",
)
_LIU = (
    "As the CLOM paper did, this follows Liu et al.'s code (class-incremental-learning): a cosine head whose old rows"
    " are frozen, and their hyper-parameters for CIFAR-100 in every experiment.",
    "At budget cpu the memory is never exceeded (rounded down) and always full (herding without repetition); the code"
    " rounds up and can select an image twice, as does budget paper.",
)

DEVIATIONS: dict[str, tuple[str, ...]] = {
    "clom": (*_MASKS, *_CONTRASTIVE, *_CALIBRATION),
    "clom-no-calibration": (*_MASKS, *_CONTRASTIVE),
    "clom-no-ood": (*_MASKS, *_CONTRASTIVE, *_CALIBRATION),
    "clom-odin": (
        *_MASKS,
        *_CALIBRATION,
        "ODIN's temperature and perturbation are constants: there are no OOD images to choose them on.",
    ),
    "hat": (
        *_MASKS,
        *_CALIBRATION,
        "Networks and per-task batch normalisation are CLOM's instead of HAT's AlexNet.",
        "Gradients are not clipped: those of the gates are bounded here.",
        "Outputs are calibrated on 20 stored samples per class, as the CLOM paper does for its ablations; HAT has no "
        "calibration.",
    ),
    "hypernet": (
        "Each task's classifier has the outputs of its own classes alone; in the official code the output layer has "
        "the rows of all tasks, of which only those of old tasks are regularised.",
        "The lookahead of the regulariser is the step that the optimiser would make; the official code has its own "
        "version of Adam, whose epsilon weighs more in the first steps.",
        "Statistics of normalisation layers are stored for each task.",
        "At budget paper both published learning-rate rules apply; in the official code one overwrites the other.",
        "At budget cpu the target on CIFAR-10 is a ResNet with 14 layers instead of 32.",
    ),
    "supsup": (
        "The number of weights that a mask keeps is rounded; the official code can keep one more.",
        _STATISTICS,
        "Outputs are calibrated on 20 stored samples per class; SupSup has no calibration.",
        *_CALIBRATION,
    ),
    "supsup-ood": (
        "The number of weights that a mask keeps is rounded; the official code can keep one more.",
        _STATISTICS,
        "The projection is trained; in the authors' code it is left out of the optimiser.",
        *_CONTRASTIVE,
        *_CALIBRATION,
    ),
    "owm": (
        "The last epoch is used; the official code restores the best epoch on the test set, future classes included.",
        "The rows of future classes start equal, so that one row represents them; in the official code they start at "
        "random.",
        "The published network and hyper-parameters for CIFAR-10 are used on every data set; at budget cpu with half "
        "the width, smaller batches and a larger learning rate of SGD.",
    ),
    "muc": (
        "At budget cpu the auxiliary images are shuffled patches of the task's own images; the official code and "
        "budget paper use SVHN.",
        "The teacher normalises with running statistics, as in the official code of MUC-MAS; that of MUC-LwF leaves it "
        "in training mode, so that it normalises by the batch.",
        "Side classifiers of tasks before the last stay unchanged; in the official code weight decay erodes them. "
        "This affects no main output.",
        "Hyper-parameters for MNIST and CIFAR-10 are not published: those for CIFAR-100 are used.",
    ),
    "pass": (
        "Prototypes are means over all training images without augmentation; in the official code with augmentation "
        "and without the last partial batch.",
        "Features and logits come from one forward pass; the official code makes two, which update normalisation "
        "statistics twice.",
        "A step draws as many noisy prototypes as the batch has images; the official code draws the nominal batch "
        "size, also for a smaller last batch.",
        "Without the brightness jitter of the official code.",
        "The first task is as small as the others: the publication starts with half of all classes.",
    ),
    "lwf-r": _LIU,
    "icarl": (
        *_LIU,
        "The network is trained as LwF.R, with softmax cross-entropy, and not with iCaRL's own sigmoid outputs; "
        "`variant: rebuffi` has these, with a growing head instead of all outputs from the start.",
        "On colour images, class means include horizontally flipped exemplars, as in iCaRL's own code; Liu et al.'s "
        "swaps colour channels instead, by mistake.",
    ),
    "mnemonics": (
        *_LIU,
        "Exemplars are learned as in the released code, through class means; the publication's bilevel optimisation "
        "is `exemplars.version: bilevel`.",
        "Learned exemplars are stored as float32 and counted as such; rounded to bytes, as in the official code, they"
        " would hardly change.",
        "Exemplars are normalised with 0.5 and 0.2 while they are learned, and stay within the range of pixels; the "
        "official code uses CIFAR-100's statistics of each channel and bounds nothing.",
        "At budget cpu the exemplars' learning rate is a thousand times the published one, with Adam, and kernels are"
        " trained instead of one factor per kernel (weight transfer).",
    ),
    "bic": (
        "At budget cpu distillation is weighted by n/(n+m) and exemplars are herded, as in the publication; at budget"
        " paper both are as in the code that the CLOM paper used (T^2, random).",
        "Validation images are never trained on; the code that the CLOM paper used trains on those of the new classes.",
        "At budget cpu the two parameters of a correction are learned at 20 times the published rate: with 20 "
        "validation images an epoch is a single step.",
        "Corrections of earlier tasks are applied in training, in the teacher and in tests, as in that code.",
        "The teacher is in evaluation mode; that code leaves the first task's in training mode, by oversight.",
    ),
    "derpp": (
        "Hyper-parameters for 2,000 stored images are not published: they lie between those for 500 and 5,120.",
        "Each task starts with a new optimiser, which makes a difference for Adam alone (budget cpu).",
        "Predictions are among the classes seen so far, as in today's official code; that of 2021 used all outputs, "
        "which is the same after the last task.",
    ),
    "a-rps": (
        "This is RPS-Net (2019), not A-RPS (2020), whose numbers the CLOM paper prints. A-RPS's measure of capacity, "
        "which decides when to switch paths, and its attention over paths were released without code, and their "
        "formulas could not be obtained. Paths switch at a fixed interval and are summed, as in RPS-Net.",
        "The teacher has the previous paths alone, and frozen modules keep their normalisation statistics; the "
        "official code lets untrained modules and drifting statistics into both.",
        "One candidate path per task is trained at budget cpu, eight at budget paper as published.",
        "Without rotations by up to 10 degrees among the augmentations.",
        "Level 7 has the skip that the other levels have.",
        "On MNIST, convolutional modules instead of the published MLP, and 200 exemplars instead of 4,400.",
        "For 20 tasks the growth of the distillation weight is scaled down to end where it does for 10.",
    ),
    "co2l": (
        "The teacher normalises with running statistics; the official code uses batch statistics, by oversight.",
        "At budget cpu the linear classifier is solved by L-BFGS on features that are extracted once, instead of "
        "trained by SGD.",
        "Momentum does not carry over to the next task.",
        "Hyper-parameters for CIFAR-100 and Tiny-ImageNet are from public scripts, not from the publication.",
    ),
    "ccg": (
        "The task classifier rehearses stored images, the publication's episodic memory, at every budget but paper. "
        "The numbers that the CLOM paper prints are most likely of its generative memory, one WGAN per task, which "
        "budget paper has; its size and training length are ours.",
        "There is no official code. Losses and memory follow a description; optimiser, epochs and sparsity are those "
        "of an unofficial implementation of its task-incremental part.",
        "Channels are relevant if they open on training or validation images (the publication: validation images), "
        "and a task's gates stay within its relevant channels, so that its outputs never change.",
        "At budget cpu the class is the most probable pair of task and class; at budget paper the task is decided "
        "first, as published.",
        "At budget cpu gates have a larger learning rate: otherwise none closes in so few steps.",
    ),
    "finetune": (),
    "joint": (),
    "clom+": (
        "Not a published system. Besides CLOM's deviations: outlier exposure to stored samples, a task predictor that "
        "fuses cross-task calibration with heads that have an output for other tasks, single views and horizontal-flip "
        "test-time augmentation, as far as the experiment's recipe uses them.",
        *_MASKS,
        *_CONTRASTIVE,
    ),
    "ncm": ("Class means are over all training images, on frozen pretrained features.",),
    "slda": (
        "The covariance is that of all samples so far, independent of their order, and is shrunk more strongly, for "
        "few images per class.",
    ),
    "klda": (
        "There are 2,048 random directions instead of 5,000, features have length one, and the covariance is shrunk.",
    ),
    "ranpac": (
        "There are 2,048 random directions instead of 10,000, and the backbone is not adapted to the first task.",
        "The penalty is chosen among nine values, in each lesson, on one photo in five of the new classes.",
    ),
    "experts": ("There is no publication of it.",),
}
"""The systems' names -> sentences about differences; empty for references without a publication."""
