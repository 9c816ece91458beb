module github.com/leveemq/levee/test/bench/phys

go 1.26
