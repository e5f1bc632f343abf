"""`kernelmint verify WHEEL`: a wheel beside the one that its sources give."""
