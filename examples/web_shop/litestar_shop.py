# litestar_shop.py
from litestar import Litestar, post
from litestar.di import Provide
from litestar.exceptions import HTTPException
from orders import Order, confirm, get_session, tables, tasks
from sqlalchemy.ext.asyncio import AsyncSession

from fairlead.contrib.litestar import Submitter, lifespan, submitter


@post("/orders/{number:int}")
async def place_order(number: int, session: AsyncSession, tasks: Submitter) -> None:
    session.add(Order(id=number))
    await tasks.submit_async(confirm, order=number)
    if number % 3 == 0:
        raise HTTPException("sold out", status_code=409)


site = Litestar(
    [place_order],
    dependencies={"session": Provide(get_session), "tasks": submitter()},
    lifespan=[lifespan(tasks, tables)],
)
