// Package device owns the disks of tests: ext4 file systems on loop devices whose power can be cut, and a disk served
// from this process through FUSE that writes down what reaches it, fails, delays and hangs where it is told to, and can
// be shown as a power loss would have left it at any of its flushes. It never touches a device or a mount that it did not
// make. Invariant: everything is mounted in a mount namespace that dies with the test process, and every loop device
// lets go of its file with its last user, so nothing stays behind however a test ends. It needs Linux and root; tests are
// skipped, with what is missing, where they do not have them.
package device
