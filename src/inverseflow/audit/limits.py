"""From where on a figure is doubtful, as `benchmarks/audit_rates.py` found, and what it would mean."""

from __future__ import annotations

BEYOND = 1.4
"""A figure beyond this many times its limit fails by itself."""
WITH_DENOISER = {
    "other correlation declared": 0.1,
    "other curve declared": 0.1,
    "re-noised spectrum": 0.421,
    "re-noised values": 0.497,
    "residual by intensity": 0.292,
    "residual mean": 0.071,
    "residual spectrum": 0.578,
    "residual values": 0.199,
    "structure in the residual": 0.071,
    "noise gets through": 0.207,
    "signal is lost": 0.175,
    "too little noise declared": 0.215,
    "too much noise declared": 0.1,
}
ALONE = {
    "other correlation declared": 0.1,
    "other curve declared": 0.1,
    "re-noised spectrum": 0.634,
    "re-noised values": 0.532,
    "more removed than noise": 0.328,
    "hardly anything removed": 0.919,
    "residual mean": 0.307,
    "too little noise declared": 0.253,
    "too much noise declared": 0.1,
}
MEANING = {
    "too little noise declared": "The quietest parts of the image are noisier than the declared noise, so noise is"
    " left in the result: declare more.",
    "too much noise declared": "The quietest parts of the image are less noisy than the declared noise, so detail is"
    " lost: declare less.",
    "other correlation declared": "Neighbouring pixels of the image's noise go together otherwise than declared:"
    " estimate the noise with its correlation.",
    "other curve declared": "The noise depends on the intensity otherwise than declared: estimate it from the image.",
    "re-noised spectrum": "The result with the declared noise on it has other fine detail than the image.",
    "re-noised values": "The result with the declared noise on it has other values than the image.",
    "residual by intensity": "What was removed varies with the intensity otherwise than the declared noise would.",
    "residual mean": "What was removed is not zero on average: the brightness was changed.",
    "residual spectrum": "What was removed has another grain than the declared noise would leave.",
    "residual values": "What was removed has other values than the declared noise would leave.",
    "structure in the residual": "What was removed holds structure of the image: the result is too smooth.",
    "noise gets through": "In two passes over simulated data noise got into the result: train longer.",
    "signal is lost": "In two passes over simulated data detail was lost: the result is too smooth.",
    "more removed than noise": "More was removed than the declared noise holds: structure is lost, or there is more"
    " noise than declared.",
    "hardly anything removed": "Hardly anything was removed: most of the declared noise is still in the result.",
}
