package server

// What lies below a data directory. Topics, salvaged bytes and what is being deleted are the broker's.
const (
	lockFile    = "LOCK"
	reserveFile = "reserve"
	metadataDir = "raft"
	logDir      = metadataDir + "/log"
	snapshotDir = metadataDir + "/snapshot"
	topicsDir   = "topics"
	salvageDir  = "salvage"
	tierDir     = "storage"
)
