// Package disk owns the tests that run a real broker on a disk that does not do what it is asked: full, failing, slow or
// hanging, and with too few descriptors. The disks are those of package device, and single system calls on single files
// are made to fail or wait by strace. It never touches a disk, mount or process that it did not start, and where the
// machine cannot do what a test needs, that test is skipped and says what is missing. Invariant: what a broker
// acknowledged before, during and after a fault is there afterwards, what it refused is not, and the other topics do not
// notice.
package disk
