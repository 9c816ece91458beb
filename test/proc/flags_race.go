//go:build race

package proc

// Race says whether brokers and tests are built to find data races, which takes memory and time.
const Race = true
