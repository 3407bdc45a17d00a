package natsio

// SweepChunksBefore removes chunks that no record names, and that were stored before a time.
var SweepChunksBefore = sweepChunks
