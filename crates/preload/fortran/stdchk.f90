! stdchk.f90: file-state checkpoints from Fortran. Compiled with the program, since module files belong to their compiler:
!
!   gfortran stdchk.f90 job.f90 -lstdchk
!
! Under `stdchk run` these calls act; anywhere else they do nothing and succeed. Fortran keeps what is written to a unit to
! itself: `flush(unit)` before a checkpoint. A unit that is open across a restore must be closed before and opened again after it.
module stdchk
  use, intrinsic :: iso_c_binding, only: c_int, c_long_long
  implicit none
  private
  public :: stdchk_active, stdchk_checkpoint, stdchk_restore

  interface
    ! Takes a checkpoint of the files now: its index, or -1. An index is an integer(c_long_long).
    integer(c_long_long) function stdchk_checkpoint() bind(C, name='stdchk_checkpoint')
      import :: c_long_long
    end function

    ! Puts files and descriptors back as they were at the checkpoint `index`: 0, or -1.
    integer(c_int) function stdchk_restore(index) bind(C, name='stdchk_restore')
      import :: c_int, c_long_long
      integer(c_long_long), value, intent(in) :: index
    end function

    integer(c_int) function active_in_c() bind(C, name='stdchk_active')
      import :: c_int
    end function
  end interface

contains

  ! Whether the program runs under `stdchk run`.
  logical function stdchk_active()
    stdchk_active = active_in_c() /= 0
  end function
end module
