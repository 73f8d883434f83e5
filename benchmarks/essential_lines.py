"""The lines that `benchmarks.mutants` changes, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One changed line: `original`, which occurs once in `file` of the package, becomes `mutated`."""

    name: str
    file: str
    original: str
    mutated: str
    tests: str
    """Arguments of pytest, relative to the folder `tests`."""


MUTANTS = (
    # CLOM
    Mutant(
        "clom-positives",
        "learning/losses.py",
        "positive.fill_diagonal_(False)",
        "positive.fill_diagonal_(True)",
        "learning/test_losses.py",
    ),
    Mutant(
        "clom-rotation-classes",
        "data/views.py",
        "(turns[:, None] * n_classes + labels).flatten()",
        "(turns[:, None] + len(turns) * labels).flatten()",
        "data/test_views.py",
    ),
    Mutant(
        "clom-norm-rows",
        "learning/learners/base.py",
        "rows = balanced_rows(task.train.labels, n_images, drawn)",
        "rows = torch.arange(min(n_images, len(task.train)))",
        "learning/learners/test_contrastive.py",
    ),
    Mutant(
        "clom-norms-of-one-batch",
        "learning/learners/base.py",
        "    for batch in views:",
        "    for batch in list(views)[:1]:",
        "learning/learners/test_contrastive.py",
    ),
    Mutant(
        "clom-views-of-step-two",
        "learning/learners/contrastive.py",
        "for _ in range(settings.views)",
        "for _ in range(1)",
        "learning/learners/test_contrastive.py",
    ),
    Mutant(
        "clom-calibration-rate",
        "learning/calibration.py",
        "torch.optim.SGD([scales, shifts], lr=settings.lr,",
        "torch.optim.SGD([scales, shifts], lr=10 * settings.lr,",
        "learning/test_calibration.py",
    ),
    Mutant(
        "clom-calibration-labels",
        "methods/families/masked.py",
        "samples.labels + offsets[samples.tasks]",
        "samples.labels",
        "methods/test_clom.py",
    ),
    Mutant(
        "clom-scale",
        "methods/families/masked.py",
        'rows = balanced_rows(labels, _TYPICAL, self._random("scale"))',
        "rows = torch.arange(_TYPICAL)",
        "methods/families/test_masked.py -k scale",
    ),
    Mutant(
        "clom-auc",
        "evaluation/metrics.py",
        "mean_auc(auc_grid(raw, score))",
        "mean_auc(auc_grid([next(iter(calibrations.values()))(blocks) for blocks in raw], score))",
        "evaluation/test_metrics.py",
    ),
    Mutant(
        "clom-odin-direction",
        "ood/odin.py",
        "return images - eps * gradient.sign()",
        "return images + eps * gradient.sign()",
        "ood/test_odin.py",
    ),
    # HAT
    Mutant(
        "hat-protection",
        "learning/protection/hard_attention.py",
        "both = torch.minimum(post[:, None], pre[None, :])",
        "both = torch.maximum(post[:, None], pre[None, :])",
        "learning/protection/test_hard_attention.py",
    ),
    Mutant(
        "hat-sparsity",
        "learning/losses.py",
        "free = [1 - u for u in used]",
        "free = [torch.ones_like(u) for u in used]",
        "learning/test_losses.py",
    ),
    Mutant(
        "hat-compensation",
        "nets/gates.py",
        "return grad_outputs[0] * ctx.max_scale * slope, None, None",
        "return grad_outputs[0] * slope, None, None",
        "nets/test_gates.py",
    ),
    # SupSup
    Mutant(
        "supsup-ranking",
        "learning/protection/supermask.py",
        "flat = scores.abs().flatten()",
        "flat = scores.flatten()",
        "learning/protection/test_supermask.py",
    ),
    Mutant(
        "supsup-straight-through",
        "learning/protection/supermask.py",
        "return grad_outputs[0] * scores.sign(), None",
        "return grad_outputs[0], None",
        "learning/protection/test_supermask.py",
    ),
    # HyperNet
    Mutant(
        "hypernet-regulariser",
        "methods/hypernet/method.py",
        "for before, after in zip(old, new, strict=True)]).mean()",
        "for before, after in zip(old, new, strict=True)]).sum()",
        "methods/hypernet/test_method.py",
    ),
    Mutant(
        "hypernet-lookahead",
        "methods/hypernet/method.py",
        "ahead = lookahead(hypernetwork, optimiser)",
        "ahead = copy.deepcopy(hypernetwork)",
        "methods/hypernet/test_method.py",
    ),
    # OWM
    Mutant(
        "owm-alpha",
        "methods/owm.py",
        "inner = mapped @ rows.T + alpha * torch.eye(",
        "inner = mapped @ rows.T + torch.eye(",
        "methods/test_owm.py",
    ),
    Mutant(
        "owm-schedule",
        "methods/owm.py",
        "self.projector.update(mean, self.alpha**progress)",
        "self.projector.update(mean, self.alpha)",
        "methods/test_owm.py",
    ),
    # MUC
    Mutant(
        "muc-discrepancy",
        "methods/muc.py",
        "return torch.stack(by_side).sum() - discrepancy(auxiliary_outputs)",
        "return torch.stack(by_side).sum() + discrepancy(auxiliary_outputs)",
        "methods/test_muc.py",
    ),
    Mutant(
        "muc-share",
        "methods/muc.py",
        "share = n_learned / (n_learned + 1)",
        "share = 0.5 if n_learned else 0.0",
        "methods/test_muc.py",
    ),
    # PASS
    Mutant(
        "pass-prototypes",
        "methods/pass_.py",
        "return prototypes[drawn] + radius * eps, ROTATIONS * drawn",
        "return prototypes[drawn] + radius * eps, drawn",
        "methods/test_pass.py",
    ),
    Mutant(
        "pass-radius",
        "methods/pass_.py",
        "        if len(self.tasks) == 1:",
        "        if len(self.tasks):",
        "methods/test_pass.py",
    ),
    # LwF.R, iCaRL, Mnemonics
    Mutant(
        "lwf-r-weight",
        "methods/lwf_r.py",
        "return loss + tau**2 * self.settings.beta * soft_kl(",
        "return loss + self.settings.beta * soft_kl(",
        "methods/test_lwf_r.py",
    ),
    Mutant(
        "lwf-r-teacher",
        "methods/lwf_r.py",
        "old_outputs = teacher(images)[:, :n_old] if n_old else None",
        "old_outputs = self.logits(images)[:, :n_old].detach() if n_old else None",
        "methods/test_lwf_r.py",
    ),
    Mutant(
        "icarl-distance",
        "methods/icarl.py",
        "return neg_squared_distance(self.embed(pixels), self.means)",
        "return super().scores(pixels)",
        "methods/test_icarl.py",
    ),
    Mutant(
        "icarl-targets",
        "methods/icarl.py",
        "targets = torch.cat([old_outputs.sigmoid(),",
        "targets = torch.cat([old_outputs.softmax(1),",
        "methods/test_icarl.py",
    ),
    Mutant(
        "mnemonics-cosines",
        "methods/mnemonics.py",
        "F.linear(F.normalize(queries), F.normalize(means))",
        "F.linear(F.normalize(queries), means)",
        "methods/test_mnemonics.py",
    ),
    # BiC
    Mutant(
        "bic-teacher",
        "methods/bic.py",
        "old = teacher.corrected(teacher.logits(images))[:, :n_old]",
        "old = teacher.logits(images)[:, :n_old]",
        "methods/test_bic.py",
    ),
    Mutant(
        "bic-share",
        "methods/bic.py",
        "old_share = n_old / new.shape[1]",
        "old_share = 0.5",
        "methods/test_bic.py",
    ),
    # DER++
    Mutant(
        "derpp-reservoir",
        "methods/derpp.py",
        "slot = number if number < self.size else draw(number + 1)",
        "slot = number if number < self.size else draw(self.size)",
        "methods/test_derpp.py",
    ),
    # A-RPS
    Mutant(
        "a-rps-phi",
        "methods/a_rps/method.py",
        "return 1.0 if task <= interval else gamma * (task - interval)",
        "return 1.0 if task <= interval else gamma * task",
        "methods/a_rps/test_method.py",
    ),
    # Co2L
    Mutant(
        "co2l-anchors",
        "learning/losses.py",
        "torch.where(current & (count > 0), losses, 0.0)",
        "torch.where(count > 0, losses, 0.0)",
        "learning/test_losses.py",
    ),
    Mutant(
        "co2l-distillation",
        "methods/co2l.py",
        "return loss + settings.distillation * distilled",
        "return loss + distilled",
        "methods/test_co2l.py",
    ),
    # CCG
    Mutant(
        "ccg-balance",
        "methods/ccg/method.py",
        "balanced = 1 / tasks.bincount()",
        "balanced = torch.ones_like(tasks.bincount(), dtype=torch.float32)",
        "methods/ccg/test_method.py",
    ),
)
