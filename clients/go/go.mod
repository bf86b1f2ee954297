module tickr

go 1.19
