package objstore_test

import (
	"testing"

	"github.com/leveemq/levee/internal/objstore"
	"github.com/leveemq/levee/internal/objstore/objstoretest"
)

func TestMem(t *testing.T) { objstoretest.Run(t, objstore.NewMem(), objstoretest.Traits{}) }
