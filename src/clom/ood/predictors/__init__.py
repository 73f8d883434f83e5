"""Task predictors: which task does an image belong to?

| module | predictors |
|---|---|
| `rules` | argmax over all blocks, and two rules that use one OOD score per task |
| `calibrated` | the paper's affine calibration (Eq. 9-11), `scale`, cross-task calibration |
| `factorised` | within-task times task probability: WPTP (Kim et al. 2022), MORE (Kim et al. 2022) |
| `row` | ROW (Kim et al. 2023), with and without stored samples |
| `tpl` | TPL (Lin et al. 2024) |
| `fusion` | ours: Mahalanobis over rotation classes, "other" heads, and their fusion with the largest logit |
"""
