package tickr

import (
	"syscall"
	"time"
	"unsafe"
)

// The number of CLOCK_BOOTTIME, which goes on while the machine is suspended.
const bootTime = 7

// clock reads a clock that never goes back. That of package time stands still while the machine is suspended, and the
// leases do not.
func clock() time.Duration {
	var now syscall.Timespec
	_, _, failed := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, bootTime, uintptr(unsafe.Pointer(&now)), 0)
	if failed != 0 {
		return time.Since(began)
	}
	return time.Duration(now.Nano())
}
