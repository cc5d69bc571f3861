! The same program as calls.c.
program calls
  use, intrinsic :: iso_c_binding, only: c_long_long
  use stdchk
  implicit none
  integer(c_long_long) :: here
  integer :: unit, other, length
  logical :: there

  open(newunit=unit, file='data', action='write')
  write(unit, '(a)') 'one'
  flush(unit)
  here = stdchk_checkpoint()
  if (here < 0) error stop 'no checkpoint'
  write(unit, '(a)') 'two'
  close(unit)
  open(newunit=other, file='other')
  close(other)
  if (stdchk_restore(here) /= 0) error stop 'no restore'
  inquire(file='data', size=length)
  inquire(file='other', exist=there)
  print '(l1, 1x, i0, 1x, l1)', stdchk_active(), length, there
end program
