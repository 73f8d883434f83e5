"""x"""
from benchmarks.bad.cases import Reader
def readers() -> list[Reader]:
    return []
