//! The arguments of a kernel launch.

use std::ffi::c_void;

use super::{Address, CudaView, CudaViewMut};
use crate::device::Element;

/// An argument of a kernel: a pointer or a number.
pub(crate) trait Argument {
    /// The address of its bytes on the host, for `cuLaunchKernel`.
    fn pointer(&mut self) -> *mut c_void;

    /// The bytes on the device that it refers to, for [`super::Stream::confine`].
    fn span(&self) -> (Address, usize) {
        (Address::NULL, 0)
    }
}

macro_rules! arguments {
    ($($type:ty),*) => {$(
        impl Argument for $type {
            fn pointer(&mut self) -> *mut c_void {
                (&raw mut *self).cast()
            }
        }
    )*};
}

arguments!(u32, u64, i32, f32);

impl<T: Element> Argument for CudaView<'_, T> {
    fn pointer(&mut self) -> *mut c_void {
        (&raw mut *self.address_mut()).cast()
    }

    fn span(&self) -> (Address, usize) {
        (self.address(), self.len() * size_of::<T>())
    }
}

impl<T: Element> Argument for CudaViewMut<'_, T> {
    fn pointer(&mut self) -> *mut c_void {
        (&raw mut *self.address_mut()).cast()
    }

    fn span(&self) -> (Address, usize) {
        (self.address(), self.len() * size_of::<T>())
    }
}

/// A view that may be missing, which a kernel sees as a null pointer.
impl<T: Element> Argument for Option<CudaView<'_, T>> {
    fn pointer(&mut self) -> *mut c_void {
        static NULL: Address = Address::NULL;
        match self {
            Some(view) => view.pointer(),
            // drivers only read through this pointer
            None => (&raw const NULL).cast_mut().cast(),
        }
    }

    fn span(&self) -> (Address, usize) {
        self.as_ref().map_or((Address::NULL, 0), Argument::span)
    }
}

/// All arguments of a kernel, in order, as a tuple.
pub(crate) trait Arguments {
    /// Calls `launch` with a pointer to each argument.
    fn with_pointers<R>(self, launch: impl FnOnce(&mut [*mut c_void]) -> R) -> R;

    /// Calls `confine` with the span of each argument.
    fn with_spans(&self, confine: impl FnOnce(&[(Address, usize)]));
}

macro_rules! tuples {
    ($first:ident $($rest:ident)*) => {
        impl<$first: Argument, $($rest: Argument),*> Arguments for ($first, $($rest,)*) {
            #[allow(non_snake_case)]
            fn with_pointers<R>(self, launch: impl FnOnce(&mut [*mut c_void]) -> R) -> R {
                let (mut $first, $(mut $rest,)*) = self;
                launch(&mut [$first.pointer(), $($rest.pointer()),*])
            }

            #[allow(non_snake_case)]
            fn with_spans(&self, confine: impl FnOnce(&[(Address, usize)])) {
                let ($first, $($rest,)*) = self;
                confine(&[$first.span(), $($rest.span()),*]);
            }
        }
        tuples!($($rest)*);
    };
    () => {};
}

// attention has the most arguments
tuples!(A B C D E F G H I J K L M N O P Q S T U V W X Y Z A1 B1 C1 D1 E1 F1 G1);
