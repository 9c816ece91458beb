// Package server is the composition root: it owns the order in which a broker starts and stops, the lock and the
// identity of its data directory, and the certificates of its listeners. It makes no decision about data; every part
// below it works without knowing who put it together, and two servers share nothing but the process. Invariant: no log
// opens before the run file says that a run is under way, and it says "clean" only after everything was flushed and no
// flush had failed.
package server
