"""Problems and contenders of attention's families, for `kernelmint bench`."""
