//go:build !linux

package tickr

import "time"

// clock reads a clock that never goes back.
func clock() time.Duration { return time.Since(began) }
