// Package simulation owns the runner of many functional cores as one world: their network, clocks, disks and crashes,
// all in the caller's goroutine. It never sleeps, reads the machine's clock, or draws anything but from a run's Choices.
// Invariant: one seed, or one schedule, is one exact execution, step by step.
//
// How to add a core:
//
//  1. Write an adapter with the method Step (see Core): decode the event's bytes, call the core, encode what it wants.
//     Time comes in as Now. Range over no map where order shows; draw nothing; keep pointers out of messages.
//  2. What must outlive a crash goes through Disk effects; wait for DiskDone before relying on it. State is made again
//     from Boot.Files. End a life that cannot go on, after a failed sync say, with Halt.
//  3. Write a client as a core of its own, with NodeOptions.Steady, which draws what to ask for from World.Choices and
//     uses Call: World.History is then what all clients saw, in an order that can be checked for linearizability.
//  4. Write a Scenario: NewWorld with the Network and Faults to meet, AddNode for each node, World.Run until the clients
//     are done (Faults.Until leaves time to recover, so Run's limit checks liveness), then check the history. Rules
//     that hold at every step go into NodeOptions.After and call World.Fail.
//  5. Break the core on purpose once, and see that Find catches it within a few seeds; keep that as a test. Then Explore
//     the scenario with Amount(short, normal) seeds. LEVEE_SEED repeats a run, LEVEE_SCHEDULE a shrunk one.
//
// Code that is no core, such as a whole log with goroutines of its own, can still be explored: a Scenario is any
// function whose decisions come from Choices.
package simulation
